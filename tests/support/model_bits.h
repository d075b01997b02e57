// A model's logits as hashes, one a position: what may depend on neither batch, chunks, policy nor workers.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "core/status.h"
#include "serve/megakernel_runner.h"

namespace eventide {

using SequenceHashes = std::vector<uint64_t>;  // by position

// 64-bit FNV-1a over the words of a row of logits.
inline uint64_t HashLogits(const float* logits, size_t count) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, logits + i, sizeof(word));
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return hash;
}

// Lengths of 1 and up, at and beside multiples of KV blocks and attention chunks, the last ones beyond
// 1,024 positions if `long_ones`.
inline std::vector<std::vector<TokenId>> BitsSequences(int count, int vocab, int long_ones,
                                                       uint64_t seed) {
  static constexpr int kLengths[] = {1, 2, 15, 16, 17, 33, 63, 64, 65, 100, 127, 128, 129, 200, 257};
  std::mt19937_64 random(seed);
  std::vector<std::vector<TokenId>> sequences(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    const int length = i + long_ones >= count ? 1023 + 130 * (count - 1 - i)
                                              : kLengths[static_cast<size_t>(i) % std::size(kLengths)];
    for (int t = 0; t < length; ++t) {
      sequences[static_cast<size_t>(i)].push_back(
          static_cast<TokenId>(random() % static_cast<uint64_t>(vocab)));
    }
  }
  return sequences;
}

// Tokens of a sequence that a step takes, of those that are left.
struct ChunkChoice {
  int fixed = 0;      // 0: any number, by `seed`
  uint64_t seed = 1;
};

// Runs `which` of the sequences together, every token's logits wanted, and returns their hashes.
inline absl::StatusOr<std::vector<SequenceHashes>> RunForHashes(
    MegakernelRunner* runner, const std::vector<std::vector<TokenId>>& sequences,
    const std::vector<size_t>& which, const ChunkChoice& choice) {
  const RunnerInfo& info = runner->info();
  const size_t vocab = info.vocab_size;
  const int most = std::min<int>(static_cast<int>(info.max_batched_tokens),
                                 runner->decoder().limits.max_outputs);
  std::mt19937_64 random(choice.seed);
  // Blocks in an order that is nobody's: another one in every run.
  std::vector<BlockId> blocks(info.num_blocks);
  for (size_t b = 0; b < blocks.size(); ++b) blocks[b] = static_cast<BlockId>(b);
  std::shuffle(blocks.begin(), blocks.end(), random);

  std::vector<SequenceHashes> hashes(which.size());
  std::vector<size_t> at(which.size(), 0);
  std::vector<std::vector<BlockId>> tables;
  for (size_t i = 0; i < which.size(); ++i) {
    const std::vector<TokenId>& tokens = sequences[which[i]];
    SlotAdmission admission;
    admission.slot = static_cast<uint32_t>(i);
    admission.tokens = tokens;
    admission.prompt_length = static_cast<uint32_t>(tokens.size());
    admission.max_length = static_cast<uint32_t>(info.max_model_len);
    RETURN_IF_ERROR(runner->Admit(admission));
    const size_t count = (tokens.size() + info.block_size - 1) / info.block_size;
    EVT_CHECK(count <= blocks.size());
    tables.emplace_back(blocks.end() - static_cast<long>(count), blocks.end());
    blocks.resize(blocks.size() - count);
  }
  for (uint64_t step = 0;; ++step) {
    std::vector<Row> rows;
    std::vector<BlockTableUpdate> updates;
    int budget = most;
    std::vector<size_t> order(which.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      const int left = static_cast<int>(sequences[which[i]].size() - at[i]);
      const int wanted = choice.fixed > 0 ? choice.fixed : 1 + static_cast<int>(random() % 200);
      const int chunk = std::min({left, wanted, budget});
      if (chunk == 0) continue;
      budget -= chunk;
      const uint32_t slot = static_cast<uint32_t>(i);
      rows.push_back({slot, static_cast<uint32_t>(chunk), 0, kRowAllLogits});
      if (at[i] == 0) updates.push_back({slot, 0, tables[i]});
    }
    if (rows.empty()) break;
    RETURN_IF_ERROR(runner->Submit({step, rows, updates}));
    RETURN_IF_ERROR(runner->Wait().status);
    ASSIGN_OR_RETURN(const std::vector<float> logits, runner->Logits(0, most - budget));
    size_t output = 0;
    for (const Row& row : rows) {
      for (uint32_t t = 0; t < row.query_length; ++t, ++output)
        hashes[row.slot].push_back(HashLogits(&logits[output * vocab], vocab));
      at[row.slot] += row.query_length;
    }
  }
  for (uint32_t slot = 0; slot < which.size(); ++slot) runner->Release(slot);
  return hashes;
}

struct BitsResult {
  int64_t runs = 0, positions = 0, wrong = 0;
  std::string first;
};

// Runs all sequences in batches of the given sizes, chosen anew for each, and compares with `alone`.
inline void CheckBatches(MegakernelRunner* runner, const std::string& name,
                         const std::vector<std::vector<TokenId>>& sequences,
                         const std::vector<SequenceHashes>& alone, const std::vector<int>& sizes,
                         const std::vector<int>& chunks, uint64_t seed, BitsResult* result) {
  std::mt19937_64 random(seed);
  for (const int size : sizes) {
    for (const int chunk : chunks) {
      std::vector<size_t> which(sequences.size());
      for (size_t i = 0; i < which.size(); ++i) which[i] = i;
      std::shuffle(which.begin(), which.end(), random);
      which.resize(static_cast<size_t>(size));
      const auto got = RunForHashes(runner, sequences, which, {chunk, random()});
      ++result->runs;
      std::string what = got.ok() ? "" : got.status().ToString();
      for (size_t i = 0; got.ok() && i < which.size(); ++i) {
        for (size_t p = 0; p < alone[which[i]].size(); ++p) {
          ++result->positions;
          if (p < (*got)[i].size() && (*got)[i][p] == alone[which[i]][p]) continue;
          ++result->wrong;
          if (what.empty())
            what = "sequence " + std::to_string(which[i]) + ", position " + std::to_string(p);
        }
      }
      if (what.empty() || !result->first.empty()) continue;
      result->first = name + ", batch of " + std::to_string(size) + ", chunk " +
                      std::to_string(chunk) + ": " + what;
    }
  }
}

}  // namespace eventide
