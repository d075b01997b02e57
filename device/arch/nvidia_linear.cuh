// Products of a tile of 16 or 32 packed rows with up to kTokens tokens by tensor cores (mma.sync m16n8k16).
// Each of the eight compute warps sums one segment of K for all rows and tokens, in steps of 16; Finish adds
// the segments left to right through shared memory. Weights' fragments are one 16-byte load a lane; core
// matrices of activations are the B fragments as they lie.
#pragma once

#include "device/arch/nvidia_compute.cuh"
#include "device/arch/nvidia_mma.cuh"
#include "device/arch/nvidia_wgmma.cuh"
#include "device/arch/nvidia_wide_ending.cuh"

namespace eventide {

static_assert(kSegments == kComputeWarps, "a warp sums one segment");

template <class Port, class T, int kTokens>
class GpuLinearTile {
 public:
  static constexpr i32 kGroups = kTokens / 8;
  // 16 rows x 8 tokens: unit u is block u % blocks of group u / blocks.
  static constexpr i32 kUnits = 2 * kGroups;

  // wide: up to kPassTiles a pass, a warpgroup two of them, by WgmmaProducts.
  template <class W>
  EVT_FN GpuLinearTile(W& w, i32 blocks, i32 tokens, bool wide)
      : thread_(w.thread), blocks_(blocks), tokens_(tokens), wide_(Port::kWgmma && wide) {
    Clear();
  }

  // Tiles that Products and Finish have together.
  EVT_FN i32 AtOnce() const { return wide_ ? kPassTiles : 1; }

  // The row whose outputs this thread finishes at every turn, of the tile that begins at row `first` of the task. Asking
  // whether this is a wide pass, which has no use for it, costs the others 1 % of a step.
  template <class E>
  EVT_FN typename E::Row RowOf(const E& epilogue, i32 first) const {
    return epilogue.At(first + (blocks_ == 1 ? 0 : static_cast<i32>(thread_ / 128 * 16)) +
                       static_cast<i32>(thread_ % 16));
  }
  // What Finish begins with comes from memory while products are made.
  template <class E>
  EVT_FN float First(const E& epilogue, const typename E::Row& row) const {
    return epilogue.Load(row, Token(0));
  }

  // Takes and drops the task's pages: weights of weight_steps steps each, activations of input_steps. tiles: how many
  // are left, with this one; keeps: the next one needs the same activations.
  template <class W>
  EVT_FN void Products(W& w, i32 steps, i32 weight_steps, i32 input_steps, i32 tiles, bool keeps) {
    Clear();
    if constexpr (Port::kWgmma && sizeof(T) == 2) {
      if (wide_) [[unlikely]] {
        WgmmaProducts<T>::Run(w, steps, tiles, c_);
        return;
      }
    }
    u32 a = 0, b = 0, piece = 0;
    i32 weights_left = 0, input_left = 0;
    i32 step = steps & -weight_steps;  // of whole pages; weight_steps is a power of two
    // Few tokens first: what a step of them runs lies together, and is fetched once a layer.
    if (tokens_ <= 8) {
      if (blocks_ == 1) {
        Pages<1>(w, steps, b, input_left, input_steps, keeps);
      } else {
        Pages<2>(w, steps, b, input_left, input_steps, keeps);
      }
    } else if (blocks_ == 2 && tokens_ > 16) {
      if (tokens_ > kTokens / 2) {
        WholePages<kGroups>(w, step);
      } else {
        WholePages<kGroups / 2>(w, step);
      }
      keeps = false;
    } else if (blocks_ == 2 && step == steps) {
      TwoGroups(w, steps, keeps);
    } else {
      step = 0;
    }
#pragma unroll 1
    while (step < steps) {
      if (weights_left == 0) {
        a = w.TakeShared(kLaneStream).x + thread_ / 32 * static_cast<u32>(blocks_) * kFragmentBytes +
            thread_ % 32 * 16;
        weights_left = Min(weight_steps, steps - step);
      }
      if (input_left == 0) {
        const uint2 page = w.TakeShared(kLaneInput);
        b = page.x + thread_ / 32 * 256 + thread_ % 16 * 16;
        piece = page.y;
        input_left = Min(input_steps, steps - step);
      }
      const i32 n = Min(weights_left, input_left);
      if (blocks_ == 1) {
        Multiply<1>(a, b, piece, n);
      } else {
        Multiply<2>(a, b, piece, n);
      }
      step += n;
      a += static_cast<u32>(n * blocks_) * (kSegments * kFragmentBytes);
      b += static_cast<u32>(n) * kStepBytes;
      weights_left -= n;
      input_left -= n;
      if (weights_left == 0) w.Drop(kLaneStream);
      if (input_left == 0 && !keeps) w.Drop(kLaneInput);
    }
    if (keeps) w.Again(kLaneInput);
  }

  // Two units a turn, through two buffers of 8 KiB at the start of Scratch, from tile to tile in turn: whoever writes to
  // one is past the barrier that followed everyone's reading of it. Thread (warp, lane) adds the segments of row
  // lane % 16, token warp % 4 * 2 + lane / 16 of unit warp / 4. Not unrolled: the epilogue is there once.
  template <class W, class E>
  EVT_FN void Finish(W& w, const E& ending, const typename E::Row& row, float next, i32 first, i32 tiles) {
    if constexpr (Port::kWgmma && sizeof(T) == 2) {
      if (wide_) [[unlikely]] {
        const i32 warp = static_cast<i32>(w.thread / 32);
        // Of a tile without a partner two warps have the rows, of one that is not there none.
        if (warp / 2 < tiles) WideEnding<MmaOf<T>, E>(ending, first + warp * 16, w.Lane()).template Run<kGroups>(c_);
        return;
      }
    }
    const E epilogue = ending;  // read once: stores between would make the compiler read it again
    // Addresses are worked out here, not kept while products are summed.
    thread_ = static_cast<u32>(Opaque(static_cast<i32>(thread_)));
    const u32 scratch = w.ScratchAddress();
    const u32 warp = thread_ / 32, lane = thread_ % 32;
    const u32 mine = scratch + warp * 512 + Exchanged(lane) * 16;
    const u32 from = scratch + warp / 4 * 4096 + Exchanged(lane % 8 * 4 + warp % 4) * 16 +
                     (lane / 8 % 2 * 2 + lane / 16) * 4;
    const i32 units = CeilDiv(tokens_, 8) * blocks_;
#pragma unroll 1
    for (i32 turn = 0; turn * 2 < units; ++turn) {
      const u32 buffer = turns_++ % 2 * 8192;
      if (units <= 2) {  // few tokens have one turn, and no choices to wait for
        Store(mine + buffer, c_[0]);
        if (units > 1) Store(mine + buffer + 4096, c_[1]);
      } else {
#pragma unroll
        for (i32 k = 0; k < kUnits / 2; ++k) {
          if (k == turn) {
            Store(mine + buffer, c_[2 * k]);
            Store(mine + buffer + 4096, c_[2 * k + 1]);
          }
        }
      }
      const float loaded = next;
      if ((turn + 1) * 2 < units) next = epilogue.Load(row, Token(turn + 1));
      w.Sync();
      const i32 token = Token(turn);
      if (token - static_cast<i32>(lane / 16) >= tokens_) continue;  // none of the warp's tokens is there
      float sum = LoadFloat(from + buffer);
#pragma unroll
      for (u32 s = 1; s < kSegments; ++s) sum = Add(sum, LoadFloat(from + buffer + s * 512));
      const float y = epilogue.Value(row, token, sum);
      const float partner = __shfl_xor_sync(0xffffffffu, y, 8);
      typename E::Carry carry = epilogue.None();
      const bool valid = token < tokens_;
      if (valid) carry = epilogue.Emit(row, token, y, partner, loaded);
      if (!epilogue.Carries()) continue;
      if (epilogue.Adds()) {
#pragma unroll
        for (u32 offset = 1; offset < 16; offset *= 2) {
          carry.value = Add(carry.value, __shfl_xor_sync(0xffffffffu, carry.value, offset));
        }
      } else {
#pragma unroll 1
        for (u32 offset = 1; offset < 16; offset *= 2) {
          typename E::Carry other;
          other.value = __shfl_xor_sync(0xffffffffu, carry.value, offset);
          other.id = __shfl_xor_sync(0xffffffffu, carry.id, offset);
          carry = epilogue.Combine(carry, other);
        }
      }
      if (valid && lane % 16 == 0) epilogue.Reduced(row, token, carry);
    }
  }

 private:
  static constexpr u32 kFragmentBytes = kFragment * sizeof(T);
  static constexpr u32 kStepBytes = kSegments * 256;  // of activations of 8 tokens

  // Also where nothing is summed yet: the compiler would keep these registers from the kernel's beginning else.
  EVT_FN void Clear() {
#pragma unroll
    for (i32 u = 0; u < kUnits; ++u) {
#pragma unroll
      for (i32 i = 0; i < 4; ++i) c_[u][i] = 0.0f;
    }
  }
  EVT_FN i32 Unit(i32 turn) const { return turn * 2 + static_cast<i32>(thread_ / 128); }
  EVT_FN i32 Token(i32 turn) const {
    return (blocks_ == 1 ? Unit(turn) : Unit(turn) / 2) * 8 +
           static_cast<i32>(thread_ / 32 % 4 * 2 + thread_ % 32 / 16);
  }
  // Where a lane's four sums lie among the warp's: the lanes that Finish reads together are in different banks.
  static EVT_FN u32 Exchanged(u32 lane) { return lane ^ (lane / 8); }

  static EVT_FN void Store(u32 address, const float (&c)[4]) {
    asm volatile("st.shared::cta.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(c[0]), "f"(c[1]),
                 "f"(c[2]), "f"(c[3])
                 : "memory");
  }
  static EVT_FN float LoadFloat(u32 address) {
    float f;
    asm volatile("ld.shared::cta.f32 %0, [%1];" : "=f"(f) : "r"(address) : "memory");
    return f;
  }

  // Whole pages of weights with up to 8 tokens, where latency counts: no choices inside. A page of activations has a
  // multiple of a page of weights' steps.
  template <i32 kBlocks, class W>
  EVT_FN void Pages(W& w, i32 steps, u32& b, i32& input_left, i32 input_steps, bool keeps) {
    constexpr i32 kSteps = static_cast<i32>(kPageBytes / (kSegments * kFragmentBytes)) / kBlocks;
    const u32 mine = thread_ / 32 * kBlocks * kFragmentBytes + thread_ % 32 * 16;
    const u32 column = thread_ / 32 * 256 + thread_ % 16 * 16 + thread_ / 16 % 2 * kStepBytes;
#pragma unroll 1
    while (steps >= kSteps) {
      b = w.TakeShared(kLaneInput).x + column;
      input_left = Min(input_steps, steps);
      steps -= input_left;
#pragma unroll 1
      for (; input_left >= kSteps; input_left -= kSteps) {
        const u32 a = w.TakeShared(kLaneStream).x + mine;
        uint4 rows[kSteps][kBlocks];
#pragma unroll
        for (i32 s = 0; s < kSteps; ++s) {
#pragma unroll
          for (i32 k = 0; k < kBlocks; ++k) {
            rows[s][k] =
                LoadShared16(a + static_cast<u32>(s * kSegments * kBlocks + k) * kFragmentBytes);
          }
        }
        uint4 columns[kSteps / 2];
#pragma unroll
        for (i32 s = 0; s < kSteps / 2; ++s) {
          columns[s] = LoadMatrices(b + static_cast<u32>(s) * 2 * kStepBytes);
        }
#pragma unroll
        for (i32 s = 0; s < kSteps / 2; ++s) {
          Group<kBlocks>(0, rows[2 * s], columns[s].x, columns[s].y);
          Group<kBlocks>(0, rows[2 * s + 1], columns[s].z, columns[s].w);
        }
        b += kSteps * kStepBytes;
        w.Drop(kLaneStream);
      }
      if (input_left == 0 && !keeps) w.Drop(kLaneInput);
    }
    // For steps that follow: as the loop over those has it.
    b -= thread_ / 16 % 2 * kStepBytes;
  }

  // Whole pages of weights of 32 rows with 9 to 16 tokens. A page of activations has two pages of weights' steps.
  template <class W>
  EVT_FN void TwoGroups(W& w, i32 steps, bool keeps) {
    constexpr i32 kPage = StepsPerPage(32, sizeof(T));
    static_assert(kPage == 2 && kPageBytes == 2 * kPage * 2 * kStepBytes);
    const u32 mine = thread_ / 32 * 2 * kFragmentBytes + thread_ % 32 * 16;
    u32 b = 0, piece = 0;
    bool first = true;  // of the page of activations
#pragma unroll 1
    for (; steps > 0; steps -= kPage) {
      const u32 a = w.TakeShared(kLaneStream).x + mine;
      uint4 rows[kPage][2];
#pragma unroll
      for (i32 i = 0; i < 2 * kPage; ++i) {
        rows[i / 2][i % 2] = LoadShared16(a + static_cast<u32>(i / 2 * kSegments * 2 + i % 2) * kFragmentBytes);
      }
      if (first) {
        const uint2 page = w.TakeShared(kLaneInput);
        // Lanes 16 to 31 of the load of four matrices: the next step.
        b = page.x + thread_ / 32 * 256 + thread_ % 16 * 16 + thread_ / 16 % 2 * kStepBytes;
        piece = page.y;
      }
#pragma unroll
      for (i32 g = 0; g < 2; ++g) {
        const uint4 m = LoadMatrices(b + static_cast<u32>(g) * piece);
        Group<2>(g, rows[0], m.x, m.y);
        Group<2>(g, rows[1], m.z, m.w);
      }
      b += kPage * kStepBytes;
      first = !first || steps == kPage;
      if (first && !keeps) w.Drop(kLaneInput);
      w.Drop(kLaneStream);
    }
  }

  // Whole pages of weights of 32 rows with more than 16 tokens, of which kUsed groups may be there: what the others
  // hold is multiplied and never looked at. No choices inside: with them, and what they jump over, a page takes a fifth
  // longer. A page of activations never has more steps than one of weights.
  template <i32 kUsed, class W>
  EVT_FN void WholePages(W& w, i32 steps) {
    constexpr i32 kPage = StepsPerPage(32, sizeof(T));
    constexpr i32 kPart = static_cast<i32>(kPageBytes / kStepBytes) / kUsed;  // steps of a page of activations
    static_assert(kPart == 1 || kPart == kPage);
    const u32 mine = thread_ / 32 * 2 * kFragmentBytes + thread_ % 32 * 16;
#pragma unroll 1
    for (; steps > 0; steps -= kPage) {
      const u32 a = w.TakeShared(kLaneStream).x + mine;
#pragma unroll
      for (i32 part = 0; part < kPage; part += kPart) {
        uint4 rows[kPart][2];
#pragma unroll
        for (i32 s = 0; s < kPart; ++s) {
#pragma unroll
          for (i32 k = 0; k < 2; ++k) {
            rows[s][k] = LoadShared16(a + static_cast<u32>((part + s) * kSegments * 2 + k) * kFragmentBytes);
          }
        }
        const uint2 page = w.TakeShared(kLaneInput);
        // Lanes 16 to 31 of the load of four matrices: the next step, or the next group.
        const u32 b = page.x + thread_ / 32 * 256 + thread_ % 16 * 16 +
                      thread_ / 16 % 2 * (kPart > 1 ? kStepBytes : page.y);
#pragma unroll
        for (i32 g = 0; g < kUsed; g += kPart > 1 ? 1 : 2) {
          const uint4 m = LoadMatrices(b + static_cast<u32>(g) * page.y);
          Group<2>(g, rows[0], m.x, m.y);
          Group<2>(kPart > 1 ? g : g + 1, rows[kPart - 1], m.z, m.w);
        }
        w.Drop(kLaneInput);
      }
      w.Drop(kLaneStream);
    }
  }

  // n steps, with as many groups as there are tokens for, rounded up to a power of two: what the others hold
  // is multiplied and never looked at.
  template <i32 kBlocks>
  EVT_FN void Multiply(u32 a, u32 b, u32 piece, i32 n) {
    if (tokens_ <= 8) {
      Steps<kBlocks, 1>(a, b, piece, n);
    } else if (tokens_ <= 16) {
      Steps<kBlocks, 2>(a, b, piece, n);
    } else if (kGroups <= 4 || tokens_ <= 32) {
      Steps<kBlocks, Min(kGroups, 4)>(a, b, piece, n);
    } else {
      Steps<kBlocks, kGroups>(a, b, piece, n);
    }
  }
  template <i32 kBlocks, i32 kUsed>
  EVT_FN void Steps(u32 a, u32 b, u32 piece, i32 n) {
    if constexpr (kBlocks * kUsed < 8) {  // of others WholePages leaves one step
#pragma unroll 1
      for (; n >= 2; n -= 2) {
        Some<kBlocks, kUsed, 2>(a, b, piece);
        a += 2 * kBlocks * kSegments * kFragmentBytes;
        b += 2 * kStepBytes;
      }
    }
    if (n > 0) Some<kBlocks, kUsed, 1>(a, b, piece);
  }
  // kSteps steps (1 or 2): all loads, then all products.
  template <i32 kBlocks, i32 kUsed, i32 kSteps>
  EVT_FN void Some(u32 a, u32 b, u32 piece) {
    uint4 rows[kSteps][kBlocks];
#pragma unroll
    for (i32 s = 0; s < kSteps; ++s) {
#pragma unroll
      for (i32 k = 0; k < kBlocks; ++k) {
        rows[s][k] = LoadShared16(a + static_cast<u32>(s * kSegments * kBlocks + k) * kFragmentBytes);
      }
    }
    // Lanes 16 to 31 of the load of four matrices: the next step, or the next group.
    const u32 upper = thread_ / 16 % 2;
    if constexpr (kSteps == 2) {
#pragma unroll
      for (i32 g = 0; g < kUsed; ++g) {
        const uint4 m = LoadMatrices(b + upper * kStepBytes + static_cast<u32>(g) * piece);
        Group<kBlocks>(g, rows[0], m.x, m.y);
        Group<kBlocks>(g, rows[1], m.z, m.w);
      }
    } else {
#pragma unroll
      for (i32 g = 0; g < kUsed; g += 2) {
        // Of one group alone, lanes 16 to 31 read it again.
        const u32 next = kUsed > 1 ? upper * piece : 0;
        const uint4 m = LoadMatrices(b + static_cast<u32>(g) * piece + next);
        Group<kBlocks>(g, rows[0], m.x, m.y);
        if (g + 1 < kUsed) Group<kBlocks>(g + 1, rows[0], m.z, m.w);
      }
    }
  }
  template <i32 kBlocks>
  EVT_FN void Group(i32 g, const uint4 (&rows)[kBlocks], u32 b0, u32 b1) {
#pragma unroll
    for (i32 k = 0; k < kBlocks; ++k) MmaOf<T>::Run(c_[g * kBlocks + k], rows[k], b0, b1);
  }

  u32 thread_;
  i32 blocks_, tokens_;
  bool wide_;
  u32 turns_ = 0;
  float c_[kUnits][4];
};

}  // namespace eventide
