#include "text/bpe_tokenizer.h"

#include <deque>

#include "absl/strings/str_replace.h"
#include "core/status.h"

namespace eventide {
namespace {

// Added tokens may follow the vocabulary with gaps (reserved ids), but not by more than this.
constexpr size_t kMaxAddedGap = 1 << 16;

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTokenizerParts parts) : parts_(std::move(parts)) {}

  absl::Status Init();
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              bool add_special_bos) const override;
  std::optional<int32_t> TokenId(absl::string_view token) const override;

 private:
  absl::Status SizePieces();
  void FillPieces();
  void EncodeOrdinary(absl::string_view normalized, bool at_start, std::vector<int32_t>* ids) const;

  BpeTokenizerParts parts_;
  AddedTokenMatcher raw_, normalized_;  // looked for before and after normalising
  absl::flat_hash_map<std::string, int32_t> added_ids_;
};

absl::Status BpeTokenizer::SizePieces() {
  size_t size = parts_.bpe.tokens().size();
  const size_t limit = size + parts_.added.size() + kMaxAddedGap;
  for (const AddedToken& token : parts_.added) {
    if (token.id < 0 || static_cast<size_t>(token.id) >= limit) {
      return absl::InvalidArgumentError(absl::StrCat("added token '", token.content, "' has id ",
                                                     token.id, ", the vocabulary ", size,
                                                     " tokens"));
    }
  }
  for (const AddedToken& token : parts_.added) {
    size = std::max(size, static_cast<size_t>(token.id) + 1);
  }
  pieces_.resize(size);
  auto check = [&](int32_t id, absl::string_view what) {
    if (IsValidId(id)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what, " id ", id, " is outside the vocabulary of ", size, " tokens"));
  };
  if (parts_.bos_id) RETURN_IF_ERROR(check(*parts_.bos_id, "BOS"));
  for (int32_t id : parts_.eos_ids) RETURN_IF_ERROR(check(id, "EOS"));
  for (int32_t id : parts_.prefix_ids) RETURN_IF_ERROR(check(id, "template token"));
  for (int32_t id : parts_.suffix_ids) RETURN_IF_ERROR(check(id, "template token"));
  return absl::OkStatus();
}

void BpeTokenizer::FillPieces() {
  auto fill = [&](size_t id, const std::string& token) {
    Piece& piece = pieces_[id];
    piece.is_byte = false;
    if (parts_.byte_level) {
      // Added tokens go through the same spelling, and are taken literally where that fails.
      if (!ByteLevelBytes(token, &piece.bytes)) piece.bytes = token;
      return;
    }
    const int byte = parts_.decode_style.byte_fallback ? FallbackByte(token) : -1;
    piece.is_byte = byte >= 0;
    piece.bytes = byte >= 0 ? std::string(1, static_cast<char>(byte))
                            : absl::StrReplaceAll(token, {{kSpaceMark, " "}});
  };
  const std::vector<std::string>& tokens = parts_.bpe.tokens();
  for (size_t id = 0; id < tokens.size(); ++id) fill(id, tokens[id]);
  for (const AddedToken& token : parts_.added) {
    const size_t id = static_cast<size_t>(token.id);
    fill(id, token.content);
    pieces_[id].special = token.special;
  }
}

absl::Status BpeTokenizer::Init() {
  RETURN_IF_ERROR(SizePieces());
  for (const AddedToken& token : parts_.added) {
    if (!IsValidUtf8(token.content)) {
      return absl::InvalidArgumentError(absl::StrCat("added token ", token.id, " is not UTF-8"));
    }
    added_ids_.try_emplace(token.content, token.id);
    if (!parts_.match_added) continue;
    if (token.normalized) {
      normalized_.Add(token, parts_.normalizer.Apply(token.content));
    } else {
      raw_.Add(token, token.content);
    }
  }
  FillPieces();
  bos_id_ = parts_.bos_id;
  eos_ids_ = parts_.eos_ids;
  prefix_ids_ = parts_.prefix_ids;
  suffix_ids_ = parts_.suffix_ids;
  decode_style_ = parts_.decode_style;
  return absl::OkStatus();
}

void BpeTokenizer::EncodeOrdinary(absl::string_view normalized, bool at_start,
                                  std::vector<int32_t>* ids) const {
  std::deque<std::string> arena;
  std::vector<PreTokenizer::Piece> pieces;
  parts_.pre_tokenizer.Apply(normalized, at_start, &arena, &pieces);
  for (const PreTokenizer::Piece& piece : pieces) parts_.bpe.Encode(piece.text, ids);
}

absl::StatusOr<std::vector<int32_t>> BpeTokenizer::Encode(absl::string_view text,
                                                          bool add_special_bos) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the text has ", text.size(), " bytes; at most ",
                                                   kMaxTextBytes, " can be encoded at once"));
  }
  std::string repaired;
  if (!IsValidUtf8(text)) {
    repaired = ReplaceInvalidUtf8(text);
    text = repaired;
  }
  std::vector<int32_t> ids;
  if (add_special_bos) ids = prefix_ids_;
  std::vector<AddedTokenMatcher::Section> sections, parts;
  raw_.Split(text, &sections);
  for (const AddedTokenMatcher::Section& section : sections) {
    if (section.id >= 0) {
      ids.push_back(section.id);
      continue;
    }
    const std::string normalized = parts_.normalizer.Apply(section.text);
    parts.clear();
    normalized_.Split(normalized, &parts);
    for (const AddedTokenMatcher::Section& part : parts) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      const bool at_start =
          section.text.data() == text.data() && part.text.data() == normalized.data();
      EncodeOrdinary(part.text, at_start, &ids);
    }
  }
  if (add_special_bos) ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  return ids;
}

std::optional<int32_t> BpeTokenizer::TokenId(absl::string_view token) const {
  const auto added = added_ids_.find(token);
  if (added != added_ids_.end()) return added->second;
  const int32_t id = parts_.bpe.Find(token);
  return id < 0 ? std::nullopt : std::optional<int32_t>(id);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(BpeTokenizerParts parts) {
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(parts));
  RETURN_IF_ERROR(tokenizer->Init());
  return tokenizer;
}

}  // namespace eventide
