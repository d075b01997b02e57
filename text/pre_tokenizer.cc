#include "text/pre_tokenizer.h"

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "core/status.h"

namespace eventide {

const char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// Cuts `piece` at [begin, end) and adds the part unless it is empty.
void AddPart(const PreTokenizer::Piece& piece, size_t begin, size_t end,
             std::vector<PreTokenizer::Piece>* out) {
  if (begin < end) {
    out->push_back({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
  }
}

}  // namespace

void PreTokenizer::AddSplit(Regex regex, Keep keep) {
  Step step{Step::kSplit, std::move(regex)};
  step.keep = keep;
  steps_.push_back(std::move(step));
}

void PreTokenizer::AddDigits(bool individual) {
  Step step{Step::kDigits, {}};
  step.individual = individual;
  steps_.push_back(std::move(step));
}

void PreTokenizer::AddPrefixSpace() {
  steps_.push_back({Step::kPrefixSpace, {}});
}

void PreTokenizer::AddMetaspace(std::string mark, Prefix prefix, bool split) {
  Step step{Step::kMetaspace, {}};
  step.mark = std::move(mark);
  step.prefix = prefix;
  step.split = split;
  steps_.push_back(std::move(step));
}

void PreTokenizer::Split(const Step& step, const Piece& piece, Pieces* out) {
  size_t done = 0, begin, end;
  while (step.regex.Find(piece.text, done, &begin, &end)) {
    if (step.keep != Keep::kMatches) AddPart(piece, done, begin, out);
    if (step.keep != Keep::kRemoved) AddPart(piece, begin, end, out);
    done = end;
  }
  if (step.keep != Keep::kMatches) AddPart(piece, done, piece.text.size(), out);
}

void PreTokenizer::Digits(const Step& step, const Piece& piece, Pieces* out) {
  static const CategoryMask kNumbers = CategoriesNamed("N");
  size_t begin = 0;
  bool in_run = false;
  for (size_t i = 0, bytes; i < piece.text.size(); i += bytes) {
    const char32_t code = DecodeUtf8(piece.text, i, &bytes);
    const bool number = (CategoryOf(code) & kNumbers) != 0;
    if (number != in_run || (number && step.individual)) {
      AddPart(piece, begin, i, out);
      begin = i;
    }
    in_run = number;
  }
  AddPart(piece, begin, piece.text.size(), out);
}

void PreTokenizer::Metaspace(const Step& step, const Piece& piece, std::deque<std::string>* arena,
                             Pieces* out) {
  std::string text = absl::StrReplaceAll(piece.text, {{" ", step.mark}});
  const bool wanted =
      step.prefix == Prefix::kAlways || (step.prefix == Prefix::kFirst && piece.at_start);
  if (wanted && !absl::StartsWith(text, step.mark)) text.insert(0, step.mark);
  arena->push_back(std::move(text));
  const Piece whole{arena->back(), piece.at_start};
  size_t begin = 0;
  while (step.split) {
    const size_t mark = whole.text.find(step.mark, begin + (begin < whole.text.size() ? 1 : 0));
    if (mark == absl::string_view::npos) break;
    AddPart(whole, begin, mark, out);
    begin = mark;
  }
  AddPart(whole, begin, whole.text.size(), out);
}

void PreTokenizer::Apply(absl::string_view text, bool at_start, std::deque<std::string>* arena,
                         std::vector<Piece>* pieces) const {
  pieces->clear();
  if (text.empty()) return;
  pieces->push_back({text, at_start});
  Pieces cut;
  for (const Step& step : steps_) {
    cut.clear();
    for (const Piece& piece : *pieces) {
      switch (step.kind) {
        case Step::kSplit:
          Split(step, piece, &cut);
          break;
        case Step::kDigits:
          Digits(step, piece, &cut);
          break;
        case Step::kMetaspace:
          Metaspace(step, piece, arena, &cut);
          break;
        case Step::kPrefixSpace:
          if (absl::StartsWith(piece.text, " ")) {
            cut.push_back(piece);
          } else {
            arena->push_back(absl::StrCat(" ", piece.text));
            cut.push_back({arena->back(), piece.at_start});
          }
          break;
      }
    }
    pieces->swap(cut);
  }
}

}  // namespace eventide
