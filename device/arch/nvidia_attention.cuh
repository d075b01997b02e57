// Attention of 16 rows over KV pages by one warp, with tensor cores (mma.sync m16n8k16). Rows are
// (query token, head) pairs. The warps of a worker take different chunks of positions, different
// blocks of 16 rows, or different halves of wide heads, and never wait for each other inside a
// chunk.
//
// Rows of queries, keys and values are head_dim elements whose 16-byte pieces are exchanged by
// KvColumn (device/layout.h), so that eight rows at the same column lie in different banks.
#pragma once

#include "device/arch/nvidia_linear.cuh"
#include "device/kv_view.h"
#include "device/layout.h"
#include "device/softmax.h"

namespace eventide {

EVT_FN uint4 LoadMatricesTransposed(u32 address) {
  uint4 r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
               : "r"(address)
               : "memory");
  return r;
}

template <class Port, class T>
class GpuAttentionTile {
 public:
  static constexpr i32 kRows = 16;
  static constexpr i32 kDims = Port::kAttentionDims;  // of one warp's share of a head
  static constexpr i32 kTokens = Port::kAttentionTokens;  // whose scores are worked on together

  template <class W>
  EVT_FN explicit GpuAttentionTile(W& w) : thread_(w.thread) {}

  // Warps that one chunk takes: blocks of 16 rows x parts of kDims dims.
  static EVT_FN i32 Units(i32 rows, i32 head_dim) {
    return CeilDiv(rows, kRows) * CeilDiv(head_dim, kDims);
  }

  // Which of the wave's chunks this warp works on (there may be fewer), if a chunk takes `units`; its sums are cleared.
  EVT_FN i32 Start(i32 units, i32, i32 head_dim) {
    units_ = units;
    const i32 warp = static_cast<i32>(thread_ / 32);
    slot_ = units_ == 1 ? warp : warp / units_;
    unit_ = warp - slot_ * units_;
    // Constants, if heads are no wider than a warp's share.
    const i32 blocks = head_dim <= kDims ? units_ : units_ / CeilDiv(head_dim, kDims);
    const i32 part = head_dim <= kDims ? 0 : unit_ / blocks;
    first_row_ = (unit_ - part * blocks) * kRows;
    first_dim_ = part * kDims;
    Clear();
    return slot_;
  }
  template <class Pages, class Visit>
  EVT_FN i32 ForEachPage(i32 slot, i32 chunks, const Pages& pages, const Visit& visit) {
    const i32 lane = static_cast<i32>(thread_ % 32);
    const i32 count = lane < chunks ? pages(lane) : 0;
    i32 before = 0;  // pages of all chunks with a smaller number
#pragma unroll 1
    for (i32 number = 0;; ++number) {
      const u32 has = __ballot_sync(0xffffffffu, count > number);
      if (has == 0) return before;
      const i32 mine = Opaque(slot);  // masks made of it take no registers between pages
      if ((has >> mine & 1) != 0) visit(number, before + __popc(has & ((1u << mine) - 1)));
      before += __popc(has);
    }
  }
  // The chunk's warps among themselves.
  EVT_FN bool First() const { return unit_ == 0; }
  EVT_FN void Sync() {
    __syncwarp();
    if (units_ > 1) {
      asm volatile("barrier.sync %0, %1;" ::"r"(2 + Opaque(slot_)), "r"(32 * Opaque(units_)) : "memory");
    }
  }
  template <class F>
  EVT_FN void ForEachRow(i32 n, const F& f) {
#pragma unroll 1
    for (i32 i = unit_; i < n; i += units_) f(i);
  }
  template <class F>
  EVT_FN void ForEachColumn(i32 n, const F& f) {
#pragma unroll 1
    for (i32 i = static_cast<i32>(thread_ % 32); i < n; i += 32) f(i);
  }
  template <class Load>
  EVT_FN float RowSum(i32 n, const Load& load) {
    float sum = 0.0f;
#pragma unroll 4
    for (i32 i = static_cast<i32>(thread_ % 32); i < n; i += 32) sum = Add(sum, load(i));
    for (u32 offset = 16; offset > 0; offset /= 2) {
      sum = Add(sum, __shfl_xor_sync(0xffffffffu, sum, offset));
    }
    return sum;
  }

  // One page of keys and values joins. begin(row), end(row): the tokens of the page that a row sees. Values
  // beyond the page's last token are zero; keys there may be anything.
  template <class Begin, class End>
  EVT_FN void Page(const QueryRows<T>& queries, const KvView<T, GpuPage>& keys,
                   const KvView<T, GpuPage>& values, i32, i32 page_tokens, i32 rows, i32 head_dim,
                   const Begin& begin, const End& end) {
#pragma unroll 1
    for (i32 first = 0; first < page_tokens; first += kTokens) {
      const u32 offset = static_cast<u32>(first * head_dim) * sizeof(T);
      Join(queries, keys.page.data + offset, values.page.data + values.offset + offset, first,
           Min(page_tokens, kTokens), rows, head_dim, begin, end);
    }
  }

  // at(row): where the chunk's sums of a row go, and its state behind them.
  template <class At>
  EVT_FN void Store(i32 rows, i32 head_dim, const At& at) const {
    const i32 group = static_cast<i32>((thread_ % 32) / 4),
              column = static_cast<i32>((thread_ % 32) % 4 * 2);
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      const i32 row = first_row_ + group + h * 8;
      if (row >= rows) continue;
      float* to = at(row);
      if (column == 0 && first_dim_ == 0) {
        *reinterpret_cast<float2*>(to + head_dim) = make_float2(state_[h].max, state_[h].sum);
      }
#pragma unroll
      for (i32 n = 0; n < kDims / 8; ++n) {
        const i32 dim = first_dim_ + n * 8 + column;
        if (dim < head_dim) {
          *reinterpret_cast<float2*>(to + dim) = make_float2(sums_[n][h * 2], sums_[n][h * 2 + 1]);
        }
      }
    }
  }

 private:
  friend class GpuLongAttention<Port, T>;

  EVT_FN void Clear() {
#pragma unroll
    for (i32 n = 0; n < kDims / 8; ++n) {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) sums_[n][i] = 0.0f;
    }
#pragma unroll
    for (i32 h = 0; h < 2; ++h) state_[h] = {BitsFloat(0xff800000u), 0.0f};
  }

  // `tokens` of the page's, from `first` on.
  template <class Begin, class End>
  EVT_FN void Join(const QueryRows<T>& queries, const u8* keys, const u8* values, i32 first, i32 tokens, i32 rows,
                   i32 head_dim, const Begin& begin, const End& end) {
    thread_ = static_cast<u32>(Opaque(static_cast<i32>(thread_)));  // as in nvidia_linear.cuh
    float s[kTokens / 8][4];
    Scores(queries, keys, tokens, rows, head_dim, s);
    const i32 group = static_cast<i32>((thread_ % 32) / 4),
              column = static_cast<i32>((thread_ % 32) % 4 * 2);
    float factor[2];
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      factor[h] = 1.0f;
      // Blocks of few rows have none in their upper half.
      if (h == 1 && rows - first_row_ <= 8) continue;
      const i32 row = first_row_ + group + h * 8;
      const bool mine = row < rows;
      factor[h] = Softmax(s, h, column, mine ? begin(row) - first : 0, mine ? end(row) - first : 0,
                          tokens);
    }
#pragma unroll
    for (i32 n = 0; n < kDims / 8; ++n) {
      if (n * 8 >= head_dim) continue;
      sums_[n][0] = Multiply(sums_[n][0], factor[0]);
      sums_[n][1] = Multiply(sums_[n][1], factor[0]);
      sums_[n][2] = Multiply(sums_[n][2], factor[1]);
      sums_[n][3] = Multiply(sums_[n][3], factor[1]);
    }
    Values(values, tokens, head_dim, s);
  }

  // s[n] = scores of tokens n * 8 ... of the page, as accumulator fragments.
  EVT_FN void Scores(const QueryRows<T>& queries, const u8* keys, i32 page_tokens, i32 rows,
                     i32 head_dim, float (&s)[kTokens / 8][4]) {
#pragma unroll
    for (i32 n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) s[n][i] = 0.0f;
    }
    const i32 pieces = head_dim / 8;
    const bool ragged = pieces % 4 != 0;
    const i32 mask = KvSwizzle(head_dim);
    const u32 row_bytes = static_cast<u32>(head_dim) * sizeof(T);
    const i32 matrix = static_cast<i32>((thread_ % 32) / 8),
              line = static_cast<i32>((thread_ % 32) % 8);
    // Where the block of 16 has no row, the last one stands in: what comes of it is never stored.
    const i32 query_row = Min(first_row_ + matrix % 2 * 8 + line, rows - 1);
    const u32 query = SharedAddress(queries.At(query_row, head_dim));
    const u32 key = SharedAddress(keys) + static_cast<u32>(line) * row_bytes;
#pragma unroll 1
    for (i32 piece = 0; piece < kMaxHeadDim / 8; piece += 4) {
      if (piece >= pieces) break;
      // Two steps of 16; pieces beyond the head are zero on both sides.
      uint4 a[2];
#pragma unroll
      for (i32 step = 0; step < 2; ++step) {
        const i32 mine = piece + step * 2 + matrix / 2;
        const i32 valid = Min(mine, pieces - 1);
        a[step] = LoadMatrices(query + static_cast<u32>((valid ^ (query_row & mask)) * 16));
        if (ragged && piece + step * 2 >= pieces) a[step].x = a[step].y = 0;
        if (ragged && piece + step * 2 + 1 >= pieces) a[step].z = a[step].w = 0;
      }
      const i32 mine = Min(piece + matrix, pieces - 1);
      const u32 at = key + static_cast<u32>((mine ^ (line & mask)) * 16);
#pragma unroll
      for (i32 n = 0; n < kTokens / 8; ++n) {
        if (n * 8 < page_tokens) {
          uint4 b = LoadMatrices(at + static_cast<u32>(n * 8) * row_bytes);
          if (ragged && piece + 1 >= pieces) b.y = 0;
          MmaOf<T>::Run(s[n], a[0], b.x, b.y);
          if (!ragged || piece + 2 < pieces) {
            if (ragged && piece + 3 >= pieces) b.w = 0;
            MmaOf<T>::Run(s[n], a[1], b.z, b.w);
          }
        }
      }
    }
  }

  // Turns one row's scores into weights; returns what its sums so far are multiplied with.
  EVT_FN float Softmax(float (&s)[kTokens / 8][4], i32 h, i32 column, i32 begin, i32 end,
                       i32 page_tokens) {
    const float minus_infinity = BitsFloat(0xff800000u);
    float top = minus_infinity;
#pragma unroll
    for (i32 n = 0; n < kTokens / 8; ++n) {
      if (n * 8 >= page_tokens) continue;
#pragma unroll
      for (i32 c = 0; c < 2; ++c) {
        const i32 token = n * 8 + column + c;
        float& score = s[n][h * 2 + c];
        score = token >= begin && token < end ? score : minus_infinity;
        top = score > top ? score : top;
      }
    }
#pragma unroll
    for (u32 offset = 1; offset < 4; offset *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, top, offset);
      top = other > top ? other : top;
    }
    SoftmaxState& state = state_[h];
    const float max = state.max > top ? state.max : top;
    // A row that has seen nothing yet keeps its zeros: subtracting -inf from itself would give NaN.
    const float reference = max == minus_infinity ? 0.0f : max;
    const float factor = Exp2(state.max - reference);
    float sum = 0.0f;
#pragma unroll
    for (i32 n = 0; n < kTokens / 8; ++n) {
      if (n * 8 >= page_tokens) continue;
#pragma unroll
      for (i32 c = 0; c < 2; ++c) {
        float& weight = s[n][h * 2 + c];
        weight = Exp2(weight - reference);
        sum = Add(sum, weight);
      }
    }
#pragma unroll
    for (u32 offset = 1; offset < 4; offset *= 2) {
      sum = Add(sum, __shfl_xor_sync(0xffffffffu, sum, offset));
    }
    state.sum = Fma(state.sum, factor, sum);
    state.max = max;
    return factor;
  }

  EVT_FN void Values(const u8* values, i32 page_tokens, i32 head_dim,
                     const float (&s)[kTokens / 8][4]) {
    const i32 pieces = Min(head_dim - first_dim_, kDims) / 8;
    const i32 mask = KvSwizzle(head_dim);
    const u32 row_bytes = static_cast<u32>(head_dim) * sizeof(T);
    const i32 matrix = static_cast<i32>((thread_ % 32) / 8),
              line = static_cast<i32>((thread_ % 32) % 8);
    const u32 value = SharedAddress(values) + static_cast<u32>(matrix % 2 * 8 + line) * row_bytes;
#pragma unroll
    for (i32 k = 0; k < kTokens / 16; ++k) {
      if (k * 16 < page_tokens) {
        const uint4 a = {MmaOf<T>::Pack(s[2 * k][0], s[2 * k][1]),
                         MmaOf<T>::Pack(s[2 * k][2], s[2 * k][3]),
                         MmaOf<T>::Pack(s[2 * k + 1][0], s[2 * k + 1][1]),
                         MmaOf<T>::Pack(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
        for (i32 n = 0; n < kDims / 8; n += 2) {
          if (n < pieces) {
            const i32 piece = first_dim_ / 8 + Min(n + matrix / 2, pieces - 1);
            const uint4 b = LoadMatricesTransposed(value + static_cast<u32>(k * 16) * row_bytes +
                                                   static_cast<u32>((piece ^ (line & mask)) * 16));
            MmaOf<T>::Run(sums_[n], a, b.x, b.y);
            if (n + 1 < pieces) MmaOf<T>::Run(sums_[n + 1], a, b.z, b.w);
          }
        }
      }
    }
  }

  i32 slot_, unit_, units_;
  u32 thread_;
  i32 first_row_, first_dim_;
  float sums_[kDims / 8][4];
  SoftmaxState state_[2];  // of rows lane / 4 and lane / 4 + 8
};

}  // namespace eventide
