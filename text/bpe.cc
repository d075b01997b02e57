#include "text/bpe.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "text/utf8.h"

namespace eventide {
namespace {

// A merge that was possible when it was pushed; it may have been overtaken since.
struct Candidate {
  uint32_t rank;
  uint32_t position;  // of the left symbol
  int32_t id;         // of the result
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(std::vector<std::string> tokens, const BpeOptions& options) {
  if (tokens.empty() || tokens.size() > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary has 1 to ", kMaxTokens, " tokens, this one ", tokens.size()));
  }
  if (options.unk < -1 || options.unk >= static_cast<int64_t>(tokens.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unknown token's id ", options.unk, " is outside the vocabulary"));
  }
  Bpe bpe;
  bpe.tokens_ = std::move(tokens);
  bpe.options_ = options;
  for (size_t id = 0; id < bpe.tokens_.size(); ++id) {
    if (bpe.tokens_[id].empty()) continue;
    bpe.ids_.try_emplace(bpe.tokens_[id], static_cast<int32_t>(id));  // the lowest id wins
  }
  bpe.all_bytes_ = true;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = options.byte_level ? ByteLevelName(static_cast<uint8_t>(byte))
                                                : absl::StrFormat("<0x%02X>", byte);
    bpe.byte_ids_[byte] = bpe.Find(name);
    bpe.all_bytes_ &= bpe.byte_ids_[byte] >= 0;
  }
  return bpe;
}

absl::StatusOr<Bpe> Bpe::FromMerges(std::vector<std::string> tokens,
                                    const std::vector<std::pair<std::string, std::string>>& merges,
                                    const BpeOptions& options) {
  ASSIGN_OR_RETURN(Bpe bpe, Create(std::move(tokens), options));
  if (merges.size() > kMaxTokens) return absl::InvalidArgumentError("too many merges");
  bpe.merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const int32_t left_id = bpe.Find(left), right_id = bpe.Find(right);
    const int32_t id = bpe.Find(left + right);
    if (left_id < 0 || right_id < 0 || id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, " ('", left, "' '", right,
                       "'): both parts and the result must be tokens of the vocabulary"));
    }
    bpe.merges_[PairKey(left_id, right_id)] = {static_cast<uint32_t>(rank), id};
  }
  return bpe;
}

absl::StatusOr<Bpe> Bpe::FromScores(std::vector<std::string> tokens,
                                    const std::vector<float>& scores,
                                    const std::vector<bool>& mergeable, const BpeOptions& options) {
  const size_t count = tokens.size();
  if (scores.size() != count || mergeable.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", count, " tokens but ", scores.size(), " scores"));
  }
  ASSIGN_OR_RETURN(Bpe bpe, Create(std::move(tokens), options));
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  for (float score : scores) {
    if (score != score) return absl::InvalidArgumentError("a token's score is not a number");
  }
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  uint32_t rank = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t id = order[i];
    if (i > 0 && scores[id] != scores[order[i - 1]]) ++rank;
    const absl::string_view token = bpe.tokens_[id];
    if (!mergeable[id] || bpe.Find(token) != static_cast<int32_t>(id)) continue;
    if (token.size() > kMaxScoredTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " has ", token.size(),
                                                     " bytes; at most ", kMaxScoredTokenBytes,
                                                     " are allowed"));
    }
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const int32_t left = bpe.Find(token.substr(0, cut)), right = bpe.Find(token.substr(cut));
      if (left < 0 || right < 0 || !mergeable[static_cast<size_t>(left)] ||
          !mergeable[static_cast<size_t>(right)]) {
        continue;
      }
      bpe.merges_[PairKey(left, right)] = {rank, static_cast<int32_t>(id)};
    }
  }
  return bpe;
}

int32_t Bpe::Find(absl::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? -1 : it->second;
}

void Bpe::AddCharacters(absl::string_view piece, std::vector<int32_t>* ids) const {
  bool unknown = false;  // an unknown token is waiting to be written
  for (size_t i = 0, bytes; i < piece.size(); i += bytes) {
    int32_t id;
    if (options_.byte_level) {
      bytes = 1;
      id = byte_ids_[static_cast<unsigned char>(piece[i])];
    } else {
      DecodeUtf8(piece, i, &bytes);
      id = Find(piece.substr(i, bytes));
    }
    if (id >= 0) {
      if (unknown) ids->push_back(options_.unk);
      unknown = false;
      ids->push_back(id);
      continue;
    }
    if (!options_.byte_level && options_.byte_fallback) {
      const absl::string_view character = piece.substr(i, bytes);
      const bool whole = all_bytes_ || std::all_of(character.begin(), character.end(), [&](char c) {
                           return byte_ids_[static_cast<unsigned char>(c)] >= 0;
                         });
      if (whole) {
        // As in Hugging Face's code, a waiting unknown token stays behind these bytes.
        for (char c : character) ids->push_back(byte_ids_[static_cast<unsigned char>(c)]);
        continue;
      }
    }
    if (options_.unk < 0) continue;
    if (unknown && !options_.fuse_unk) ids->push_back(options_.unk);
    unknown = true;
  }
  if (unknown) ids->push_back(options_.unk);
}

void Bpe::ApplyMerges(size_t first, std::vector<int32_t>* ids) const {
  const size_t count = ids->size() - first;
  if (count < 2 || merges_.empty()) return;
  EVT_CHECK(count < kEnd);
  std::vector<Symbol> symbols(count);
  std::vector<Candidate> initial;
  initial.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const uint32_t at = static_cast<uint32_t>(i);
    symbols[i] = {(*ids)[first + i], i == 0 ? kEnd : at - 1, i + 1 == count ? kEnd : at + 1, true};
    if (i + 1 == count) break;
    const auto merge = merges_.find(PairKey((*ids)[first + i], (*ids)[first + i + 1]));
    if (merge != merges_.end()) initial.push_back({merge->second.rank, at, merge->second.id});
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<Candidate>> heap(
      std::greater<Candidate>(), std::move(initial));
  auto offer = [&](uint32_t left) {
    if (left == kEnd || symbols[left].next == kEnd) return;
    const auto merge = merges_.find(PairKey(symbols[left].id, symbols[symbols[left].next].id));
    if (merge != merges_.end()) heap.push({merge->second.rank, left, merge->second.id});
  };
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = symbols[top.position];
    if (!left.live || left.next == kEnd) continue;
    Symbol& right = symbols[left.next];
    const auto merge = merges_.find(PairKey(left.id, right.id));
    if (merge == merges_.end() || merge->second.id != top.id) continue;  // overtaken
    left.id = top.id;
    right.live = false;
    left.next = right.next;
    if (left.next != kEnd) symbols[left.next].previous = top.position;
    offer(left.previous);
    offer(top.position);
  }
  ids->resize(first);
  for (uint32_t at = 0; at != kEnd; at = symbols[at].next) ids->push_back(symbols[at].id);
}

void Bpe::Encode(absl::string_view piece, std::vector<int32_t>* ids) const {
  if (options_.ignore_merges) {
    std::string spelled;
    if (options_.byte_level) {
      for (char c : piece) spelled += ByteLevelName(static_cast<uint8_t>(c));
    }
    const int32_t id = Find(options_.byte_level ? absl::string_view(spelled) : piece);
    if (id >= 0) {
      ids->push_back(id);
      return;
    }
  }
  const size_t first = ids->size();
  AddCharacters(piece, ids);
  ApplyMerges(first, ids);
}

}  // namespace eventide
