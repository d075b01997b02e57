// Attention of up to 128 rows by all warps of a worker, with tensor cores: tiles of rows of many query tokens.
#pragma once

#include "device/arch/nvidia_attention.cuh"
#include "device/neighbours.h"

namespace eventide {

// All warps on one chunk, each on 16 rows of its own (and a part of wide heads); chunks are merged in registers, and in
// some of the task's memory where these have no room.
template <class Port, class T>
class GpuLongAttentionTile : public GpuAttentionTile<Port, T> {
  using Base = GpuAttentionTile<Port, T>;
  using Base::first_dim_, Base::first_row_, Base::slot_, Base::state_, Base::sums_, Base::thread_, Base::unit_,
      Base::units_;

 public:
  using Base::kDims, Base::kRows;
  static constexpr i32 kKept = kDims / 8 - Port::kMergedAside;  // blocks of 8 dims in registers
  static constexpr i32 kPageBlocks = static_cast<i32>(kPageBytes) / (4 * 4 * static_cast<i32>(kComputeThreads));
  static constexpr i32 kPages = CeilDiv(Port::kMergedAside, kPageBlocks);
  static_assert(kPages <= kMaxLongPages && kPages < Port::kLongFloor);

  template <class W>
  EVT_FN GpuLongAttentionTile(W& w, i32 head_dim, const LongMemory& memory) : Base(w) {
    // Constants where heads are no wider than a warp's share.
    const i32 blocks = Rows(head_dim) / kRows;
    units_ = static_cast<i32>(kComputeWarps);
    slot_ = 0;
    unit_ = static_cast<i32>(thread_ / 32);
    const i32 part = head_dim <= kDims ? 0 : unit_ / blocks;
    first_row_ = (unit_ - part * blocks) * kRows;
    first_dim_ = part * kDims;
#pragma unroll
    for (i32 n = 0; n < kKept; ++n) {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) merged_[n][i] = 0.0f;
    }
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
#pragma unroll 1
      for (i32 n = kKept; n < kDims / 8; ++n) *Aside(memory, n, h) = make_float2(0.0f, 0.0f);
      State(memory, h) = {BitsFloat(0xff800000u), 0.0f};
    }
    this->Clear();
  }

  // Of a task at most.
  static EVT_FN constexpr i32 Rows(i32 head_dim) {
    return static_cast<i32>(kComputeWarps) / CeilDiv(head_dim, kDims) * kRows;
  }
  template <class Begin, class End>
  EVT_FN void Page(const QueryRows<T>& queries, const KvView<T, GpuPage>& keys, const KvView<T, GpuPage>& values, i32,
                   i32 page_tokens, i32 rows, i32 head_dim, const Begin& begin, const End& end) {
    this->template Pages<true>(queries, keys, values, page_tokens, rows, head_dim, begin, end);
  }

  // The chunk joins those before it.
  EVT_FN void Merge(i32, i32 head_dim, const LongMemory& memory) {
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      const SoftmaxMerge merge = MergeStates(State(memory, h), state_[h]);
      __syncwarp();  // four lanes have the row
      State(memory, h) = merge.state;
#pragma unroll
      for (i32 n = 0; n < kKept; ++n) {
        if (n * 8 >= head_dim) continue;
#pragma unroll
        for (i32 i = h * 2; i < h * 2 + 2; ++i) merged_[n][i] = MergeValue(merge, merged_[n][i], sums_[n][i]);
      }
#pragma unroll
      for (i32 n = kKept; n < kDims / 8; ++n) {
        if (n * 8 >= head_dim) continue;
        float2& at = *Aside(memory, n, h);
        at = make_float2(MergeValue(merge, at.x, sums_[n][h * 2]), MergeValue(merge, at.y, sums_[n][h * 2 + 1]));
      }
    }
    this->Clear();
  }
  // store(row, dim, eight): what attention says, eight neighbours at a time, by way of the queries' memory, which
  // nobody reads any more.
  template <class F>
  EVT_FN void Output(const QueryRows<T>& queries, i32 rows, i32 head_dim, const LongMemory& memory, const F& store) {
    const i32 lane = static_cast<i32>(thread_ % 32), mask = KvSwizzle(head_dim);
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      const i32 row = Row(h);
      const float sum = State(memory, h).sum;
      const float inverse = sum > 0.0f ? Divide(1.0f, sum) : 0.0f;
      T* to = queries.At(row, head_dim) + lane % 4 * 2;
      const auto put = [&](i32 n, float low, float high) {
        const i32 dim = first_dim_ + n * 8;
        if (dim >= head_dim) return;
        const Two<T> pair = {Storage<T>::From(Multiply(low, inverse)), Storage<T>::From(Multiply(high, inverse))};
        pair.To(to + KvColumn(mask, row, dim));
      };
#pragma unroll
      for (i32 n = 0; n < kKept; ++n) put(n, merged_[n][h * 2], merged_[n][h * 2 + 1]);
#pragma unroll
      for (i32 n = kKept; n < kDims / 8; ++n) {
        const float2 merged = *Aside(memory, n, h);
        put(n, merged.x, merged.y);
      }
    }
    __syncwarp();
    const i32 pieces = Min(head_dim - first_dim_, kDims) / 8;
#pragma unroll 1
    for (i32 i = lane; i < Min(kRows, rows - first_row_) * pieces; i += 32) {
      const i32 row = first_row_ + i / pieces, dim = first_dim_ + i % pieces * 8;
      store(row, dim, Neighbours<T, 8>::Of(queries.At(row, head_dim) + KvColumn(mask, row, dim)));
    }
  }

 private:
  // Of a block of dims that is not kept, this thread's two sums of a row.
  EVT_FN float2* Aside(const LongMemory& memory, i32 n, i32 h) const {
    const i32 at = n - kKept;
    return reinterpret_cast<float2*>(memory.pages[at / kPageBlocks]) +
           (at % kPageBlocks * 2 + h) * static_cast<i32>(kComputeThreads) + static_cast<i32>(thread_);
  }
  // Each warp has its own, also those that have parts of the same rows: they would have to wait for each other.
  EVT_FN SoftmaxState& State(const LongMemory& memory, i32 h) const {
    return reinterpret_cast<SoftmaxState*>(memory.near)[unit_ * kRows + static_cast<i32>(thread_ % 32) / 4 + h * 8];
  }
  EVT_FN i32 Row(i32 h) const { return first_row_ + static_cast<i32>(thread_ % 32) / 4 + h * 8; }
  float merged_[kKept][4];
};

}  // namespace eventide
