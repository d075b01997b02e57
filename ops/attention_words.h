// The two products of attention over one KV page, in plain form for every target: scores of keys,
// and weighted sums of values. Rows are (query token, head) pairs of one task; only keys that a row
// may see are read, so nothing beyond a sequence's end can leak in, not even as 0 * NaN.
#pragma once

#include "device/dtype.h"

namespace eventide {

// One page of keys or values: positions below `split` come from the cache (the stream lane's page,
// in pieces of 1 << shift tokens), the others are this step's (a page that Compute filled). Every
// token is head_dim contiguous elements.
template <class T, class Page>
struct KvPage {
  Page cached;
  const T* fresh;
  i32 split, shift, head_dim;

  EVT_FN const T* Token(i32 s) const {
    if (s >= split) return fresh + s * head_dim;
    const T* piece = reinterpret_cast<const T*>(cached.Piece(s >> shift));
    return piece + (s & ((1 << shift) - 1)) * head_dim;
  }
};

// Which tokens [Low, High) of a page each row sees: up to itself, and not beyond the sliding
// window.
struct KvMask {
  i32 heads;   // rows of one query token
  i32 first;   // position of row 0, less the page's
  i32 window;  // 0: none
  i32 tokens;  // of a page

  EVT_FN i32 Low(i32 row) const {
    return window > 0 ? Max(0, first + row / heads - window + 1) : 0;
  }
  EVT_FN i32 High(i32 row) const { return Min(tokens, first + row / heads + 1); }
};

inline constexpr i32 kDotLanes = 16;

// The sum of 16 virtual lanes: l and l + 8, then + 4, + 2, + 1.
EVT_FN float LaneSum(float (&lane)[kDotLanes]) {
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
  return LaneSum(lane);
}

// scores[row][s] = q[row] . k[s], -inf where row does not see s. mask.tokens is a power of two.
template <class T, class W, class Page>
EVT_FN void AttentionScores(W& w, const float* q, const KvPage<T, Page>& keys, const KvMask& mask,
                            i32 rows, float* scores) {
  const float kMasked = BitsFloat(0xff800000u);
  w.Parallel(rows * mask.tokens, [&](i32 i) {
    const i32 row = i / mask.tokens, s = i % mask.tokens;
    const bool seen = s >= mask.Low(row) && s < mask.High(row);
    scores[i] = seen ? Dot(q + row * keys.head_dim, keys.Token(s), keys.head_dim) : kMasked;
  });
}

// sum[row][d] = sum[row][d] * factor[row] + weights[row][s] * v[s][d], s ascending. Rows that see
// nothing of the page keep their bits.
template <class T, class W, class Page>
EVT_FN void AttentionValues(W& w, const float* weights, const float* factor,
                            const KvPage<T, Page>& values, const KvMask& mask, i32 rows,
                            float* sums) {
  const i32 blocks = values.head_dim / 8;
  w.Parallel(rows * blocks, [&](i32 i) {
    const i32 row = i / blocks;
    const i32 column = (i - row * blocks) * 8;
    const i32 low = mask.Low(row), high = mask.High(row);
    if (low >= high) return;
    float* out = sums + row * values.head_dim + column;
    float sum[8];
    for (i32 l = 0; l < 8; ++l) sum[l] = Multiply(out[l], factor[row]);
    for (i32 s = low; s < high; ++s) {
      const float weight = weights[row * mask.tokens + s];
      const T* v = values.Token(s) + column;
      for (i32 l = 0; l < 8; ++l) sum[l] = Fma(weight, ToFloat(v[l]), sum[l]);
    }
    for (i32 l = 0; l < 8; ++l) out[l] = sum[l];
  });
}

}  // namespace eventide
