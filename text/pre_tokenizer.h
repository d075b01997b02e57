// Cuts normalised text into the pieces that byte-pair merges never cross: a list of steps, each of
// which cuts the pieces of the step before, as in Hugging Face's Sequence.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/regex.h"

namespace eventide {

// The regular expression of GPT-2, which ByteLevel steps apply by default.
extern const char kGpt2Pattern[];

class PreTokenizer {
 public:
  struct Piece {
    absl::string_view text;
    bool at_start = false;  // this piece begins where the whole input begins
  };
  enum class Keep {
    kIsolated,  // matches and what lies between them are pieces
    kRemoved,   // only what lies between matches
    kMatches,   // only the matches
  };
  enum class Prefix { kNever, kFirst, kAlways };

  void AddSplit(Regex regex, Keep keep);
  // Runs of numeric characters (general category N), each character alone if `individual`.
  void AddDigits(bool individual);
  // A space in front of each piece that has none.
  void AddPrefixSpace();
  // SentencePiece's form: spaces become `mark`, one is put in front, pieces begin at marks.
  void AddMetaspace(std::string mark, Prefix prefix, bool split);

  // `arena` keeps what had to be rewritten and must outlive the pieces. Empty pieces do not occur.
  void Apply(absl::string_view text, bool at_start, std::deque<std::string>* arena,
             std::vector<Piece>* pieces) const;

 private:
  struct Step {
    enum Kind { kSplit, kDigits, kPrefixSpace, kMetaspace } kind;
    Regex regex{};
    Keep keep = Keep::kIsolated;
    bool individual = false;
    std::string mark{};
    Prefix prefix = Prefix::kNever;
    bool split = false;
  };
  using Pieces = std::vector<Piece>;

  static void Split(const Step& step, const Piece& piece, Pieces* out);
  static void Digits(const Step& step, const Piece& piece, Pieces* out);
  static void Metaspace(const Step& step, const Piece& piece, std::deque<std::string>* arena,
                        Pieces* out);

  std::vector<Step> steps_;
};

// The pre-tokenizers that GGUF files name ("gpt-2", "smollm", "llama-bpe", "qwen2", "default",
// ...); an unknown name is an error that lists the known ones.
absl::StatusOr<PreTokenizer> PreTokenizerNamed(absl::string_view name);
// The regular expressions of such a name, in the order in which they cut; matches are pieces, and
// so is what lies between them.
absl::StatusOr<std::vector<std::string>> PreTokenizerPatterns(absl::string_view name);

}  // namespace eventide
