// What a linear does with its products (ops/linear.h): norm scale, bias, then one of four endings. Tiles
// (device/arch) call it for each output; which thread does so is theirs to choose.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"

namespace eventide {

struct LinearOperand {
  enum : int { kWeight, kInput, kBias, kSums, kCount, kOutput, kResidual, kGain, kNext, kNextSums, kBest,
    kTiles, kSlotToken };
};

struct LinearParams {
  enum Epilogue : i32 {
    kStore,     // output float[token][output_stride]
    kResidual,  // residual += y; next = residual * gain as activations; next_sums
    kSiluMul,   // output T activations: silu(gate) * up, rows r and r + 8 of each 16 being gate and up
    kLogits,    // kStore, and best[token][16 rows] = the largest value and its row
  };

  DimRef tokens;      // tokens of the step; or
  i32 count_index;    // >= 0: the element of operand "count" that holds them
  i32 rows;           // outputs (before packing pads them to whole tiles)
  i32 k;              // inputs
  i32 tile_rows;      // 16 or 32: how the weights are packed; no bits depend on it
  i32 tiles;          // of rows that one task does, one after the other; no bits depend on it. Experts: see ExpertTile
  i32 epilogue;       // Epilogue
  i32 output_stride;  // kStore, kLogits: floats per token. kSiluMul: K of the consumer
  i32 norm_size;      // 0: no norm; else columns of x, the sums being over blocks of 16 of them
  float epsilon;
  i32 has_bias;
  i32 expert_tiles;   // > 0: row tiles of one expert
  i32 gathers;        // experts, their ExpertLinear: slot s takes the input and sums of token slot_token[s], not its own
  i32 team;           // 2 or 4: so many neighbouring tasks, which wait and notify alike, may share their rows and split
                      // the tokens of a tile, of which it has as many times more; no bits depend on it
  i32 eights;         // steps of up to a tile of tokens have a task for every 8 of them: where rows make few tasks
};

// The best logit of 16 neighbouring ids, ties to the lower one.
struct BestLogit {
  float value;
  i32 id;
};
inline constexpr i32 kBestIds = 16;

// One task's ending. What it needs of the task's record is read once, before the products: stores between
// would make the compiler read it again and again.
template <class T>
struct LinearEpilogue {
  // What 16 neighbouring rows leave together: a sum of squares, or the best logit.
  using Carry = BestLogit;

  // What one row of the tile has for all tokens.
  struct Row {
    i32 r;       // among all outputs
    i32 column;  // where its value goes in a group of activations; < 0: nowhere
    T bias, gain;  // as they are stored: converting them would wait for them
  };

  i32 epilogue, rows, stride, tokens;
  i32 first_row, group;  // group: elements of 8 tokens of activations
  const float* scale;    // of each token; null: no norm
  const T* bias;         // null: none
  const T* gain;
  float* floats;  // residual, or output
  T* activations;  // next, or output
  void* reduced;   // sums of squares, or best logits

  EVT_FN LinearEpilogue(const Task<LinearParams>& t, const float* scales, i32 row, i64 token, i32 token_count) {
    const LinearParams& p = t.params();
    epilogue = p.epilogue;
    rows = p.rows;
    tokens = token_count;
    first_row = row;
    scale = p.norm_size > 0 ? scales : nullptr;
    bias = p.has_bias ? t.Operand<const T>(LinearOperand::kBias) : nullptr;
    const bool residual = epilogue == LinearParams::kResidual;
    stride = residual ? rows : p.output_stride;
    group = static_cast<i32>(ActivationGroup(stride));
    gain = t.Operand<const T>(LinearOperand::kGain);
    const int output = residual ? LinearOperand::kResidual : LinearOperand::kOutput;
    floats = t.Operand<float>(output) + token * stride;
    activations = t.Operand<T>(residual ? LinearOperand::kNext : LinearOperand::kOutput) +
                  token / 8 * group;
    const u64 pair = residual ? sizeof(float) : sizeof(BestLogit);
    reduced = t.Operand<u8>(residual ? LinearOperand::kNextSums : LinearOperand::kBest) +
              static_cast<u64>(token * CeilDiv(rows, 16)) * pair;
  }

  // Row of the tile.
  EVT_FN Row At(i32 row) const {
    Row at{first_row + row, -1, {}, {}};
    // Padded to whole tiles.
    if (bias != nullptr) at.bias = bias[at.r];
    if (epilogue == LinearParams::kResidual && at.r < rows) {
      at.column = ActivationColumn(SegmentSteps(stride), at.r);
      at.gain = gain[at.r];
    }
    if (epilogue == LinearParams::kSiluMul && at.r % 16 < 8) {
      const i32 column = at.r / 16 * 8 + at.r % 16;
      if (column < stride) at.column = ActivationColumn(SegmentSteps(stride), column);
    }
    return at;
  }

  // What an output needs from memory, so that it can be asked for long before.
  EVT_FN float Load(const Row& row, i32 token) const {
    float loaded = 0.0f;
    if (epilogue == LinearParams::kResidual && row.r < rows && token < tokens) {
      loaded = floats[static_cast<i64>(token) * stride + row.r];
    }
    return loaded;
  }

  EVT_FN float Value(const Row& row, i32 token, float product) const {
    const float y = scale != nullptr ? Multiply(product, scale[token]) : product;
    return bias != nullptr ? Add(y, ToFloat(row.bias)) : y;
  }

  // y: Value of (row, token); partner: of row ^ 8 of the same block.
  EVT_FN Carry Emit(const Row& row, i32 token, float y, float partner, float loaded) const {
    if (epilogue == LinearParams::kSiluMul) {
      if (row.column >= 0) Activation(row, token, Gated(y, partner));
      return None();
    }
    if (row.r >= rows) return None();
    const bool residual = epilogue == LinearParams::kResidual;
    const float value = Total(y, loaded);
    *Float(row, token) = value;
    if (residual) Activation(row, token, Gain(row, value));
    return {residual ? Multiply(value, value) : value, row.r};
  }
  // Emit's parts, for tiles whose threads have both partners.
  EVT_FN bool Gates() const { return epilogue == LinearParams::kSiluMul; }
  EVT_FN bool Scores() const { return epilogue == LinearParams::kLogits; }
  static EVT_FN float Gated(float y, float partner) { return Multiply(Silu(y), partner); }
  EVT_FN float Total(float y, float loaded) const {
    return epilogue == LinearParams::kResidual ? Add(loaded, y) : y;
  }
  EVT_FN float* Float(const Row& row, i32 token) const { return floats + static_cast<i64>(token) * stride + row.r; }
  EVT_FN float Gain(const Row& row, float value) const { return Multiply(value, ToFloat(row.gain)); }
  EVT_FN Carry Scored(const Row& row, float value) const { return row.r < rows ? Carry{value, row.r} : None(); }
  EVT_FN T* Group(i32 token) const { return activations + static_cast<i64>(token / 8) * group; }

  // Rows that carry nothing lose to any others.
  EVT_FN Carry None() const {
    const bool sums = epilogue == LinearParams::kResidual;
    return {sums ? 0.0f : BitsFloat(0x7fc00000u), 0x7fffffff};
  }
  EVT_FN bool Carries() const {
    return epilogue == LinearParams::kResidual || epilogue == LinearParams::kLogits;
  }
  // Whether carries are sums, of values alone.
  EVT_FN bool Adds() const { return epilogue == LinearParams::kResidual; }
  EVT_FN Carry Combine(const Carry& a, const Carry& b) const {
    if (Adds()) return {Add(a.value, b.value), a.id};
    // NaN loses to any number.
    const bool a_number = a.value == a.value, b_number = b.value == b.value;
    const bool better = a_number != b_number ? a_number
                        : a.value == b.value || !a_number ? a.id < b.id
                                                          : a.value > b.value;
    return better ? a : b;
  }
  // Of the block of 16 rows that `row` is in.
  EVT_FN void Reduced(const Row& row, i32 token, const Carry& carry) const {
    const i32 blocks = CeilDiv(rows, 16), block = row.r / 16;
    if (block >= blocks) return;
    const i64 index = static_cast<i64>(token) * blocks + block;
    if (epilogue == LinearParams::kResidual) {
      static_cast<float*>(reduced)[index] = carry.value;
    } else {
      static_cast<BestLogit*>(reduced)[index] = carry;
    }
  }

 private:
  EVT_FN void Activation(const Row& row, i32 token, float value) const {
    Group(token)[row.column + token % 8 * 8] = Storage<T>::From(value);
  }
  static EVT_FN float Silu(float v) {
    constexpr float kLog2E = 1.4426950408889634f;
    return Divide(v, Add(1.0f, Exp2(Multiply(-v, kLog2E))));
  }
};

}  // namespace eventide
