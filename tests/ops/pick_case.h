// Block-sparse attention as a test: what is picked against float64 scores, what is attended to against float64
// softmax over just that, and the bits of dense attention where everything is picked.
#pragma once

#include <algorithm>

#include "tests/ops/attention_case.h"

namespace eventide {

// Bits of dense attention: prefill in pieces, then decode, with as many blocks to pick as there are.
template <class T>
void CheckEverythingPicked(const OpBackend& backend, AttentionShape s, int length) {
  INFO(backend.name << ", head_dim " << s.head_dim << ", group " << s.group << ", length " << length);
  s.sequences = 2;
  s.max_positions = length + 8;
  s.max_tokens = length + 8;
  const AttentionData<T> data(s, 5);
  AttentionData<T> sparse = data;
  sparse.shape.picked = CeilDiv(s.max_positions, s.block_size);
  const auto run = [&](const AttentionData<T>& d) {
    AttentionCase<T> attention(backend, d);
    attention.Step({{0, length / 2 + 1}});
    attention.Step({{1, 1}, {0, length - length / 2 - 1}});
    for (int i = 0; i < 5; ++i) attention.Step({{0, 1}, {1, 1}});
    attention.Step({{1, 3}, {0, 1}});
    attention.Step({});
    return attention.outputs;
  };
  const auto dense = run(data), all = run(sparse);
  for (int i = 0; i < 2; ++i) CHECK(SameBits(dense[i], all[i]));
}

// Decodes behind a prompt with few blocks to pick.
template <class T>
void CheckFewPicked(const OpBackend& backend, AttentionShape s, int length, int picked) {
  INFO(backend.name << ", head_dim " << s.head_dim << ", length " << length << ", picked " << picked);
  s.sequences = 2;
  s.max_positions = length + 6;
  s.max_tokens = length + 6;
  s.picked = picked;
  const AttentionData<T> data(s, static_cast<uint64_t>(length));
  AttentionCase<T> attention(backend, data);
  attention.Step({{1, 1}, {0, length}});
  WorstError error;
  for (int step = 0; step < 4; ++step) {
    const int position = length + step, full = position / s.block_size;
    attention.Step({{1, 1}, {0, 1}});
    for (int kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
      const std::vector<int> got = attention.Picked(1, kv_head, 0, position);
      REQUIRE(static_cast<int>(got.size()) == std::min(full, picked));
      CHECK(std::is_sorted(got.begin(), got.end()));
      // Float64 scores: nothing that was left out beats what was picked by more than rounding.
      std::vector<double> scores(full);
      double size = 0;
      for (int b = 0; b < full; ++b) {
        std::vector<double> low(s.head_dim, HUGE_VAL), high(s.head_dim, -HUGE_VAL);
        for (int p = b * s.block_size; p < (b + 1) * s.block_size; ++p) {
          const auto k = data.Rotated(data.Raw(0, p, kv_head) + s.group * s.head_dim, p, data.k_norm);
          for (int d = 0; d < s.head_dim; ++d) {
            const double key = ToFloat(Storage<T>::From(static_cast<float>(k[d])));
            low[d] = std::min(low[d], key);
            high[d] = std::max(high[d], key);
          }
        }
        double terms = 0;
        for (int g = 0; g < s.group; ++g) {
          const auto q = data.Rotated(data.Raw(0, position, kv_head) + g * s.head_dim, position, data.q_norm);
          for (int d = 0; d < s.head_dim; ++d) {
            scores[b] += std::max(q[d] * low[d], q[d] * high[d]);
            terms += std::max(std::abs(q[d] * low[d]), std::abs(q[d] * high[d]));
          }
        }
        size = std::max(size, terms);
      }
      // Keys are rounded to storage after a float32 rotation: one unit of it may go the other way.
      const double slack = size * (2 * Epsilon<T>() + 300 * 0x1p-24);
      double worst_in = HUGE_VAL, best_out = -HUGE_VAL;
      for (int b = 0; b < full; ++b) {
        const bool in = std::binary_search(got.begin(), got.end(), b);
        (in ? worst_in : best_out) = in ? std::min(worst_in, scores[b]) : std::max(best_out, scores[b]);
      }
      CHECK(worst_in >= best_out - slack);
      const auto sees = [&](int p) {
        const int block = p / s.block_size;
        return block >= full || std::binary_search(got.begin(), got.end(), block);
      };
      for (int head = kv_head * s.group; head < (kv_head + 1) * s.group; ++head) {
        const auto e = data.Reference(0, position, head, sees);
        const double weights = 2 * e.score_size * (2 * Epsilon<T>() + 64 * 0x1p-24) + Epsilon<T>();
        for (int d = 0; d < s.head_dim; ++d) {
          const double bound = e.magnitude[d] * (2 * weights + 2 * Epsilon<T>() + 0x1p-18) + 1e-7;
          error.Add(ToFloat(attention.outputs[0][position][head * s.head_dim + d]), e.value[d], bound);
        }
      }
    }
  }
  CHECK(error.ratio <= 1);
}

// A row's bits are its own: alone, beside others, in parts of any size, on any number of workers.
template <class T>
void CheckPickedBits(OpBackend backend, AttentionShape s, int length) {
  s.sequences = 3;
  s.max_positions = length + 8;
  s.max_tokens = 3 * length;
  s.picked = 3;
  const auto run = [&](const OpBackend& on, int part_chunks, bool company) {
    AttentionShape shape = s;
    shape.part_chunks = part_chunks;
    const AttentionData<T> data(shape, 9);
    AttentionCase<T> attention(on, data);
    attention.Step(company ? std::vector<StepRow>{{2, 9}, {0, length}, {1, 20}}
                           : std::vector<StepRow>{{0, length}});
    for (int i = 0; i < 4; ++i) {
      attention.Step(company ? std::vector<StepRow>{{1, 1}, {2, 2 * (i % 2)}, {0, 1}}
                             : std::vector<StepRow>{{0, 1}});
    }
    return attention.outputs[0];
  };
  const auto alone = run(backend, 1000, false);
  for (const int part_chunks : {1, 2, 1000}) {
    INFO(backend.name << ", parts of " << part_chunks);
    CHECK(SameBits(alone, run(backend, part_chunks, true)));
    OpBackend other = backend;
    other.workers = 3;
    CHECK(SameBits(alone, run(other, part_chunks, true)));
  }
}

}  // namespace eventide
