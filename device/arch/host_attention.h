// Attention of one task's rows over KV pages for workers that are one thread (port_example.h). The sums over
// head_dim and over tokens run in 16 virtual lanes, so that they vectorise and keep their order.
#pragma once

#include "device/arch/host_sums.h"
#include "device/dtype.h"
#include "device/kv_view.h"
#include "device/neighbours.h"
#include "device/softmax.h"

namespace eventide {

inline constexpr i32 kDotLanes = 16;

// The sum of 16 virtual lanes: l and l + 8, then + 4, + 2, + 1.
EVT_FN float DotLaneSum(float (&lane)[kDotLanes]) {
  for (i32 l = 0; l < 8; ++l) lane[l] = Add(lane[l], lane[l + 8]);
  for (i32 l = 0; l < 4; ++l) lane[l] = Add(lane[l], lane[l + 4]);
  for (i32 l = 0; l < 2; ++l) lane[l] = Add(lane[l], lane[l + 2]);
  return Add(lane[0], lane[1]);
}

// sum over d of q[d] * k[d]: lane l takes d = l, l + 16, ... in order. n is a multiple of 8.
template <class T>
EVT_FN float Dot(const float* q, const T* k, i32 n) {
  float lane[kDotLanes];
  for (i32 l = 0; l < kDotLanes; ++l) lane[l] = 0.0f;
  i32 d = 0;
  for (; d + kDotLanes <= n; d += kDotLanes) {
    for (i32 l = 0; l < kDotLanes; ++l) lane[l] = Fma(q[d + l], ToFloat(k[d + l]), lane[l]);
  }
  if (d < n) {
    for (i32 l = 0; l < 8; ++l) lane[l] = Fma(q[d + l], ToFloat(k[d + l]), lane[l]);
  }
  return DotLaneSum(lane);
}

// Turns scores[0, n) (n a multiple of 16) into weights under the new maximum, adds them to the
// state, and returns the factor of what was accumulated before. Masked scores (-inf) weigh exactly
// 0.
EVT_FN float SoftmaxPage(float* scores, i32 n, SoftmaxState& state) {
  float lane[kDotLanes];
  for (i32 l = 0; l < kDotLanes; ++l) lane[l] = MinusInfinity();
  for (i32 s = 0; s < n; s += kDotLanes) {
    for (i32 l = 0; l < kDotLanes; ++l) lane[l] = scores[s + l] > lane[l] ? scores[s + l] : lane[l];
  }
  float max = state.max;
  for (i32 l = 0; l < kDotLanes; ++l) max = lane[l] > max ? lane[l] : max;
  if (max == MinusInfinity()) {  // nothing seen so far, or scores that overflowed
    for (i32 s = 0; s < n; ++s) scores[s] = 0.0f;
    return 1.0f;
  }
  for (i32 l = 0; l < kDotLanes; ++l) lane[l] = 0.0f;
  for (i32 s = 0; s < n; s += kDotLanes) {
    for (i32 l = 0; l < kDotLanes; ++l) {
      const float weight = Exp2(Add(scores[s + l], -max));
      scores[s + l] = weight;
      lane[l] = Add(lane[l], weight);
    }
  }
  const float factor = Exp2(Add(state.max, -max));
  state = {max, Fma(state.sum, factor, DotLaneSum(lane))};
  return factor;
}

template <class T>
class HostAttentionTile {
 public:
  template <class W>
  EVT_FN explicit HostAttentionTile(W&) {}

  static EVT_FN i32 Units(i32, i32) { return 1; }

  // The one group of threads works on the wave's one chunk.
  EVT_FN i32 Start(i32, i32 rows, i32 head_dim) {
    for (i32 i = 0; i < rows * head_dim; ++i) sums_[i] = 0.0f;
    for (i32 row = 0; row < rows; ++row) state_[row] = {MinusInfinity(), 0.0f};
    return 0;
  }
  // Calls visit(number, ahead) for the pages of the wave's chunk `slot`, `ahead` of the wave's first one, where
  // pages(of) is how many chunk `of` of `chunks` has and all are in the order of AttentionPages.
  // Returns the pages of all.
  template <class Pages, class Visit>
  EVT_FN i32 ForEachPage(i32, i32, const Pages& pages, const Visit& visit) {
    const i32 count = pages(0);
    for (i32 number = 0; number < count; ++number) visit(number, number);
    return count;
  }
  EVT_FN bool First() const { return true; }
  EVT_FN void Sync() {}
  template <class F>
  EVT_FN void ForEachRow(i32 n, const F& f) {
    for (i32 i = 0; i < n; ++i) f(i);
  }
  template <class F>
  EVT_FN void ForEachColumn(i32 n, const F& f) {
    for (i32 i = 0; i < n; ++i) f(i);
  }
  template <class Load>
  EVT_FN float RowSum(i32 n, const Load& load) {
    return LaneSum(0, n, [&](i32, i32 i) { return load(i); });
  }

  // Only tokens that a row may see are read, so nothing beyond a sequence's end can leak in. Rows that see
  // nothing of the page keep their bits.
  template <class P, class Low, class High>
  EVT_FN void Page(const QueryRows<T>& queries, const KvView<T, P>& keys, const KvView<T, P>& values,
                   i32 tokens, i32, i32 rows, i32 head_dim, const Low& low, const High& high) {
    for (i32 row = 0; row < rows; ++row) {
      const i32 begin = low(row), end = Min(high(row), tokens);
      if (begin >= end) continue;
      float query[kMaxHeadDim];
      const T* from = queries.At(row, head_dim);
      for (i32 d = 0; d < head_dim; ++d) query[d] = ToFloat(from[d]);
      float scores[kMaxKvPageTokens];
      for (i32 s = 0; s < kMaxKvPageTokens; ++s) scores[s] = MinusInfinity();
      for (i32 s = begin; s < end; ++s) scores[s] = Dot(query, keys.Token(s), head_dim);
      const float factor = SoftmaxPage(scores, RoundUp(tokens, kDotLanes), state_[row]);
      float* sum = sums_ + row * head_dim;
      for (i32 d = 0; d < head_dim; ++d) sum[d] = Multiply(sum[d], factor);
      for (i32 s = begin; s < end; ++s) {
        const float weight = scores[s];
        const T* v = values.Token(s);
        for (i32 d = 0; d < head_dim; ++d) sum[d] = Fma(weight, ToFloat(v[d]), sum[d]);
      }
    }
  }

  template <class At>
  EVT_FN void Store(i32 rows, i32 head_dim, const At& at) const {
    for (i32 row = 0; row < rows; ++row) {
      float* to = at(row);
      for (i32 d = 0; d < head_dim; ++d) to[d] = sums_[row * head_dim + d];
      to[head_dim] = state_[row].max;
      to[head_dim + 1] = state_[row].sum;
    }
  }

 private:
  template <class>
  friend class HostLongAttention;

  float sums_[kMaxAttentionElements];
  SoftmaxState state_[kMaxAttentionRows];
};

// What a tile of many rows has merged of its chunks so far.
template <class T>
class HostLongAttention {
  using Tile = HostAttentionTile<T>;

 public:
  static constexpr i32 kPages = 0;

  EVT_FN void Start(const Tile&, i32 head_dim, const LongMemory&) {
    const i32 rows = Rows(head_dim);
    for (i32 i = 0; i < rows * head_dim; ++i) merged_[i] = 0.0f;
    for (i32 row = 0; row < rows; ++row) merged_state_[row] = {MinusInfinity(), 0.0f};
  }

  // As many as of any task: what these tiles are spared is the keys' rope.
  static EVT_FN constexpr i32 Rows(i32 head_dim) {
    return Min(kMaxAttentionElements * 2 / static_cast<i32>(sizeof(T)) / head_dim, kMaxAttentionRows);
  }

  EVT_FN void Merge(const Tile& tile, i32 rows, i32 head_dim, const LongMemory&) {
    for (i32 row = 0; row < rows; ++row) {
      const SoftmaxMerge merge = MergeStates(merged_state_[row], tile.state_[row]);
      for (i32 i = row * head_dim; i < (row + 1) * head_dim; ++i) {
        merged_[i] = MergeValue(merge, merged_[i], tile.sums_[i]);
      }
      merged_state_[row] = merge.state;
    }
  }
  template <class F>
  EVT_FN void Output(const Tile&, const QueryRows<T>&, i32 rows, i32 head_dim, const LongMemory&, const F& store) {
    for (i32 row = 0; row < rows; ++row) {
      const float sum = merged_state_[row].sum;
      const float inverse = sum > 0.0f ? Divide(1.0f, sum) : 0.0f;
      for (i32 d = 0; d < head_dim; d += 8) {
        Neighbours<T, 8> out;
        for (i32 i = 0; i < 8; ++i) {
          out.at[i] = Storage<T>::From(Multiply(merged_[row * head_dim + d + i], inverse));
        }
        store(row, d, out);
      }
    }
  }

 private:
  float merged_[kMaxAttentionElements];
  SoftmaxState merged_state_[kMaxAttentionRows];
};

}  // namespace eventide
