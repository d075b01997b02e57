// y[token, row] = sum over k of weight[row, k] * input[token, k], one task per 32 tokens x 32 rows, with
// the epilogues a decoder needs. Weights are packed and streamed ahead of every wait (device/layout.h).
//
// The same for experts: the weight is that of all experts in turn, a task's first coordinate is an element
// of the table "tiles" (ops/expert_tables.h), which says whose weight and which slots, and a slot's input is
// its own or that of its token.
//
// A norm in front of the linear is folded in: the producer stores x * gain and the sums of squares of x;
// the linear multiplies its result by 1 / rms, which is the same product in another order.
//
// Cost: every weight byte once per token tile; memory-bound up to some tens of tokens.
#pragma once

#include "device/dtype.h"
#include "device/op.h"
#include "device/layout.h"
#include "ops/expert_tables.h"

namespace eventide {

struct LinearOperand {
  enum : int { kWeight, kInput, kBias, kSums, kCount, kOutput, kResidual, kGain, kNext, kNextSums, kBest,
    kTiles, kSlotToken };
};

struct Linear {
  static constexpr OpInfo kInfo = {
      "linear", 13,
      {In("weight"), In("input"), In("bias"), In("sums"), In("count"), Out("output"),
       InOut("residual"), In("gain"), Out("next"), Out("next_sums"), Out("best"),
       In("tiles"), In("slot_token")},
      /*stream_floor=*/1, /*input_floor=*/1, /*even_tasks=*/true};

  static constexpr i32 kTileRows = 32;
  static constexpr i32 kTileTokens = 32;
  static_assert(kTileTokens == kExpertTileSlots);

  enum Epilogue : i32 {
    kStore,     // output float[token][output_stride]
    kResidual,  // residual += y; next = residual * gain as activations; next_sums
    kSiluMul,   // output T activations: silu(gate) * up, rows r and r + 8 of each 16 being gate and up
    kLogits,    // kStore, and best[token][tile] = the tile's largest value and its row
  };

  struct Params {
    DimRef tokens;      // tokens of the step; or
    i32 count_index;    // >= 0: the element of operand "count" that holds them
    i32 rows;           // outputs (before packing pads them to whole tiles)
    i32 k;              // inputs
    i32 epilogue;       // Epilogue
    i32 output_stride;  // kStore, kLogits: floats per token. kSiluMul: K of the consumer
    i32 norm_size;      // 0: no norm; else columns of x, the sums being over blocks of 16 of them
    float epsilon;
    i32 has_bias;
    i32 expert_tiles;  // > 0: row tiles of one expert
    i32 gathers;       // experts: slot s takes the input and sums of token slot_token[s], not its own
  };

  // The best value of one tile of logits, ties to the lower row.
  struct Best {
    float value;
    i32 row;
  };

  static EVT_FN const ExpertTile& TileOf(const Task<Params>& t) {
    return t.Operand<const ExpertTile>(LinearOperand::kTiles)[t.at.at[0]];
  }
  // The task's first token, or slot.
  static EVT_FN i32 First(const Task<Params>& t) {
    return t.params().expert_tiles > 0 ? TileOf(t).group * 8 : t.at.at[0] * kTileTokens;
  }
  static EVT_FN i32 Tokens(const Task<Params>& t) {
    const Params& p = t.params();
    if (p.expert_tiles > 0) return TileOf(t).count;
    const i32 all = p.count_index < 0 ? t.Dim(p.tokens)
                                      : t.Operand<const i32>(LinearOperand::kCount)[p.count_index];
    return Min(all - t.at.at[0] * kTileTokens, kTileTokens);
  }

  template <class T, class L>
  static EVT_FN void Stream(L& lane, const Task<Params>& t) {
    constexpr i32 kElements = static_cast<i32>(sizeof(T));
    constexpr i32 kSteps = StepsPerPage(kTileRows, kElements);
    constexpr u32 kStepBytes = kSegments * (kTileRows / 16) * kFragment * kElements;
    const Params& p = t.params();
    const i32 steps = SegmentSteps(p.k);
    const i32 expert = p.expert_tiles > 0 ? TileOf(t).expert : 0;
    const u8* tile = t.Operand<const u8>(LinearOperand::kWeight) +
                     (static_cast<i64>(expert) * p.expert_tiles + t.at.at[1]) *
                         PackedTile(kTileRows, p.k) * kElements;
    for (i32 step = 0; step < steps; step += kSteps) {
      lane.Copy(1, Min(kSteps, steps - step) * kStepBytes,
                [&](i32) { return tile + static_cast<u64>(step) * kStepBytes; });
    }
  }

  template <class T, class L>
  static EVT_FN void Input(L& lane, const Task<Params>& t) {
    constexpr i32 kElements = static_cast<i32>(sizeof(T));
    constexpr u32 kStepBytes = kSegments * 128 * kElements;
    const Params& p = t.params();
    const i32 steps = SegmentSteps(p.k);
    const i32 tokens = Tokens(t), groups = CeilDiv(tokens, 8);
    const i32 page_steps = InputSteps<T>(groups);
    const u64 group_bytes = static_cast<u64>(ActivationGroup(p.k)) * kElements;
    const u8* input = t.Operand<const u8>(LinearOperand::kInput);
    const u8* first = input + static_cast<u64>(First(t) / 8) * group_bytes;
    for (i32 step = 0; step < steps; step += page_steps) {
      if (p.gathers) {
        GatherRows<kElements>(lane, t, tokens, Min(page_steps, steps - step) * kStepBytes,
                              input + static_cast<u64>(step) * kStepBytes);
        continue;
      }
      lane.Copy(groups, Min(page_steps, steps - step) * kStepBytes,
                [&](i32 g) { return first + g * group_bytes + static_cast<u64>(step) * kStepBytes; });
    }
  }

  template <u32 kElements, class L>
  static EVT_FN void GatherRows(L& lane, const Task<Params>& t, i32 slots, u32 bytes,
                                const u8* input) {
    const i32* slot_token = t.Operand<const i32>(LinearOperand::kSlotToken) + First(t);
    const u64 group_bytes = static_cast<u64>(ActivationGroup(t.params().k)) * kElements;
    lane.CopyRows(slots, bytes, 8 * kElements, [&](i32 slot) {
      const i32 token = slot_token[slot];
      return input + static_cast<u64>(token / 8) * group_bytes +
             static_cast<u32>(token % 8) * (8 * kElements);
    });
  }

  // Steps whose activations share a page: as many as fit, in whole pages of weights.
  template <class T>
  static EVT_FN i32 InputSteps(i32 groups) {
    constexpr i32 kElements = static_cast<i32>(sizeof(T));
    constexpr i32 kSteps = StepsPerPage(kTileRows, kElements);
    const i32 fit = static_cast<i32>(kPageBytes) / (kSegments * 128 * kElements) / groups;
    return fit / kSteps * kSteps;
  }

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    const i32 steps = SegmentSteps(p.k);
    const i32 tokens = Tokens(t), first = First(t);
    float* scale = reinterpret_cast<float*>(w.Scratch() + kScratchBytes) - kTileTokens;
    if (p.norm_size > 0) NormScales(w, t, first, tokens, scale);
    typename W::template LinearTile<T, kTileTokens> tile(w);
    Products<T>(w, tile, steps, tokens);
    tile.Finish(w, tokens, [&](i32 row, i32 token, float v0, float v8) {
      Store<T>(t, row, first + token, v0, v8, p.norm_size > 0 ? scale[token] : 1.0f);
    });
    if (p.epilogue == kResidual) SumSquares(w, t, tokens);
    if (p.epilogue == kLogits) FindBest(w, t, tokens);
  }

 private:
  template <class T, class W, class Tile>
  static EVT_FN void Products(W& w, Tile& tile, i32 steps, i32 tokens) {
    constexpr i32 kSteps = StepsPerPage(kTileRows, static_cast<i32>(sizeof(T)));
    const i32 page_steps = InputSteps<T>(CeilDiv(tokens, 8));
    for (i32 first = 0; first < steps; first += page_steps) {
      const auto input = w.Take(kLaneInput);
      const i32 end = Min(first + page_steps, steps);
      for (i32 step = first; step < end; step += kSteps) {
        const auto weights = w.Take(kLaneStream);
        tile.Step(w, weights, input, step - first, Min(kSteps, end - step), Opaque(tokens));
        w.Drop(kLaneStream);
      }
      w.Drop(kLaneInput);
    }
  }

  // 1 / rms of each token: sums of squares over blocks of 16 columns, added in the fixed order of RowSums.
  template <class W>
  static EVT_FN void NormScales(W& w, const Task<Params>& t, i32 first, i32 tokens,
                                float* scale) {
    const Params& p = t.params();
    const i32 blocks = CeilDiv(p.norm_size, 16);
    const float* sums = t.Operand<const float>(LinearOperand::kSums);
    const i32* slot_token = t.Operand<const i32>(LinearOperand::kSlotToken);
    w.RowSums(
        tokens, blocks,
        [&](i32 token, i32 i) {
          const i32 at = p.gathers ? slot_token[first + token] : first + token;
          return sums[static_cast<i64>(at) * blocks + i];
        },
        [&](i32 token, float sum) {
          const float mean = Divide(sum, static_cast<float>(p.norm_size));
          scale[token] = Divide(1.0f, SquareRoot(Add(mean, p.epsilon)));
        });
    // Read after the barriers in Finish.
  }

  // Rows `row` and `row` + 8 of the tile, one token (or slot) of it.
  template <class T>
  static EVT_FN void Store(const Task<Params>& t, i32 row, i64 at, float v0, float v8,
                           float scale) {
    const Params& p = t.params();
    const i32 r0 = t.at.at[1] * kTileRows + row;
    float y0 = Multiply(v0, scale), y8 = Multiply(v8, scale);
    if (p.has_bias) {
      const T* bias = t.Operand<const T>(LinearOperand::kBias);  // padded to whole tiles
      y0 = Add(y0, ToFloat(bias[r0]));
      y8 = Add(y8, ToFloat(bias[r0 + 8]));
    }
    if (p.epilogue == kSiluMul) {
      const i32 column = r0 / 16 * 8 + r0 % 16;
      if (column >= p.output_stride) return;
      T* out = t.Operand<T>(LinearOperand::kOutput);
      out[ActivationIndex(p.output_stride, static_cast<i32>(at), column)] =
          Storage<T>::From(Multiply(Silu(y0), y8));
    } else if (p.epilogue == kResidual) {
      StoreResidual<T>(t, at, r0, y0);
      StoreResidual<T>(t, at, r0 + 8, y8);
    } else {
      float* out = t.Operand<float>(LinearOperand::kOutput) + at * p.output_stride;
      if (r0 < p.rows) out[r0] = y0;
      if (r0 + 8 < p.rows) out[r0 + 8] = y8;
    }
  }

  template <class T>
  static EVT_FN void StoreResidual(const Task<Params>& t, i64 token, i32 row, float y) {
    const Params& p = t.params();
    if (row >= p.rows) return;
    float* x = t.Operand<float>(LinearOperand::kResidual) + token * p.rows + row;
    const float sum = Add(*x, y);
    *x = sum;
    const T* gain = t.Operand<const T>(LinearOperand::kGain);
    T* next = t.Operand<T>(LinearOperand::kNext);
    next[ActivationIndex(p.rows, static_cast<i32>(token), row)] =
        Storage<T>::From(Multiply(sum, ToFloat(gain[row])));
  }

  static EVT_FN float Silu(float v) {
    constexpr float kLog2E = 1.4426950408889634f;
    return Divide(v, Add(1.0f, Exp2(Multiply(-v, kLog2E))));
  }

  // Sums of squares of the new residual over the tile's blocks of 16 columns, in column order.
  template <class W>
  static EVT_FN void SumSquares(W& w, const Task<Params>& t, i32 tokens) {
    const Params& p = t.params();
    const i32 blocks = CeilDiv(p.rows, 16);
    const i64 first = static_cast<i64>(t.at.at[0]) * kTileTokens;
    const float* x = t.Operand<const float>(LinearOperand::kResidual) + first * p.rows;
    float* sums = t.Operand<float>(LinearOperand::kNextSums) + first * blocks;
    w.Sync();  // the tile's residuals are written
    w.Parallel(tokens * (kTileRows / 16), [&](i32 i) {
      const i32 token = i / (kTileRows / 16);
      const i32 block = t.at.at[1] * (kTileRows / 16) + i % (kTileRows / 16);
      if (block >= blocks) return;
      const float* columns = x + static_cast<i64>(token) * p.rows + block * 16;
      const i32 count = Min(16, p.rows - block * 16);
      float sum = 0.0f;
      for (i32 c = 0; c < count; ++c) sum = Fma(columns[c], columns[c], sum);
      sums[static_cast<i64>(token) * blocks + block] = sum;
    });
  }

  template <class W>
  static EVT_FN void FindBest(W& w, const Task<Params>& t, i32 tokens) {
    const Params& p = t.params();
    const i32 tiles = CeilDiv(p.rows, kTileRows);
    const i64 first = static_cast<i64>(t.at.at[0]) * kTileTokens;
    const float* logits = t.Operand<const float>(LinearOperand::kOutput) + first * p.output_stride;
    Best* best = t.Operand<Best>(LinearOperand::kBest) + first * tiles;
    w.Sync();  // the tile's logits are written
    w.Parallel(tokens, [&](i32 token) {
      const i32 row = t.at.at[1] * kTileRows;
      const float* values = logits + static_cast<i64>(token) * p.output_stride + row;
      Best found{values[0], row};
      for (i32 r = 1; r < Min(kTileRows, p.rows - row); ++r) {
        // NaN never wins: a comparison with it is false, and a NaN in first place loses to any number.
        if (values[r] > found.value || found.value != found.value) found = {values[r], row + r};
      }
      best[static_cast<i64>(token) * tiles + t.at.at[1]] = found;
    });
  }
};

}  // namespace eventide
