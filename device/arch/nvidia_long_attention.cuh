// Attention of up to 128 rows by all warps of a worker, with tensor cores: tiles of rows of many query tokens.
#pragma once

#include "device/arch/nvidia_attention.cuh"
#include "device/neighbours.h"

namespace eventide {

// What a tile of many rows has merged of its chunks so far: all warps work on one chunk, each on 16 rows of its own (and a
// part of wide heads). In registers, and in some of the task's memory where these have no room.
template <class Port, class T>
class GpuLongAttention {
  using Tile = GpuAttentionTile<Port, T>;
  static constexpr i32 kRows = Tile::kRows, kDims = Tile::kDims;

 public:
  static constexpr i32 kKept = kDims / 8 - Port::kMergedAside;  // blocks of 8 dims in registers
  static constexpr i32 kPageBlocks = static_cast<i32>(kPageBytes) / (4 * 4 * static_cast<i32>(kComputeThreads));
  static constexpr i32 kPages = CeilDiv(Port::kMergedAside, kPageBlocks);
  static_assert(kPages <= kMaxLongPages && kPages < Port::kLongFloor);

  EVT_FN void Start(const Tile& tile, i32, const LongMemory& memory) {
#pragma unroll
    for (i32 n = 0; n < kKept; ++n) {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) merged_[n][i] = 0.0f;
    }
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
#pragma unroll 1
      for (i32 n = kKept; n < kDims / 8; ++n) *Aside(tile, memory, n, h) = make_float2(0.0f, 0.0f);
      State(tile, memory, h) = {BitsFloat(0xff800000u), 0.0f};
    }
  }

  // Of a task at most.
  static EVT_FN constexpr i32 Rows(i32 head_dim) {
    return static_cast<i32>(kComputeWarps) / CeilDiv(head_dim, kDims) * kRows;
  }

  // The chunk that the tile has worked on joins those before it.
  EVT_FN void Merge(const Tile& tile, i32, i32 head_dim, const LongMemory& memory) {
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      const SoftmaxMerge merge = MergeStates(State(tile, memory, h), tile.state_[h]);
      __syncwarp();  // four lanes have the row
      State(tile, memory, h) = merge.state;
#pragma unroll
      for (i32 n = 0; n < kKept; ++n) {
        if (n * 8 >= head_dim) continue;
#pragma unroll
        for (i32 i = h * 2; i < h * 2 + 2; ++i) merged_[n][i] = MergeValue(merge, merged_[n][i], tile.sums_[n][i]);
      }
#pragma unroll
      for (i32 n = kKept; n < kDims / 8; ++n) {
        if (n * 8 >= head_dim) continue;
        float2& at = *Aside(tile, memory, n, h);
        at = make_float2(MergeValue(merge, at.x, tile.sums_[n][h * 2]),
                         MergeValue(merge, at.y, tile.sums_[n][h * 2 + 1]));
      }
    }
  }
  // store(row, dim, eight): what attention says, eight neighbours at a time, by way of the queries' memory, which
  // nobody reads any more.
  template <class F>
  EVT_FN void Output(const Tile& tile, const QueryRows<T>& queries, i32 rows, i32 head_dim, const LongMemory& memory,
                     const F& store) {
    const i32 lane = static_cast<i32>(tile.thread_ % 32), mask = KvSwizzle(head_dim);
#pragma unroll
    for (i32 h = 0; h < 2; ++h) {
      const i32 row = Row(tile, h);
      const float sum = State(tile, memory, h).sum;
      const float inverse = sum > 0.0f ? Divide(1.0f, sum) : 0.0f;
      T* to = queries.At(row, head_dim) + lane % 4 * 2;
      const auto put = [&](i32 n, float low, float high) {
        const i32 dim = tile.first_dim_ + n * 8;
        if (dim >= head_dim) return;
        const Two<T> pair = {Storage<T>::From(Multiply(low, inverse)), Storage<T>::From(Multiply(high, inverse))};
        pair.To(to + KvColumn(mask, row, dim));
      };
#pragma unroll
      for (i32 n = 0; n < kKept; ++n) put(n, merged_[n][h * 2], merged_[n][h * 2 + 1]);
#pragma unroll
      for (i32 n = kKept; n < kDims / 8; ++n) {
        const float2 merged = *Aside(tile, memory, n, h);
        put(n, merged.x, merged.y);
      }
    }
    __syncwarp();
    const i32 pieces = Min(head_dim - tile.first_dim_, kDims) / 8;
#pragma unroll 1
    for (i32 i = lane; i < Min(kRows, rows - tile.first_row_) * pieces; i += 32) {
      const i32 row = tile.first_row_ + i / pieces, dim = tile.first_dim_ + i % pieces * 8;
      store(row, dim, Neighbours<T, 8>::Of(queries.At(row, head_dim) + KvColumn(mask, row, dim)));
    }
  }

 private:
  // Of a block of dims that is not kept, this thread's two sums of a row.
  EVT_FN float2* Aside(const Tile& tile, const LongMemory& memory, i32 n, i32 h) const {
    const i32 at = n - kKept;
    return reinterpret_cast<float2*>(memory.pages[at / kPageBlocks]) +
           (at % kPageBlocks * 2 + h) * static_cast<i32>(kComputeThreads) + static_cast<i32>(tile.thread_);
  }
  // Each warp has its own, also those that have parts of the same rows: they would have to wait for each other.
  EVT_FN SoftmaxState& State(const Tile& tile, const LongMemory& memory, i32 h) const {
    return reinterpret_cast<SoftmaxState*>(memory.near)[tile.thread_ / 32 * kRows + tile.thread_ % 32 / 4 + h * 8];
  }
  EVT_FN i32 Row(const Tile& tile, i32 h) const {
    return tile.first_row_ + static_cast<i32>(tile.thread_ % 32) / 4 + h * 8;
  }

  float merged_[kKept][4];
};

}  // namespace eventide
