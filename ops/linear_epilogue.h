// What a linear does with its products (ops/linear.h): norm scale, bias, then one of four endings. Tiles
// (device/arch) call it for each output; which thread does so is theirs to choose.
#pragma once

#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"

namespace eventide {

struct LinearOperand {
  enum : int { kWeight, kInput, kBias, kSums, kCount, kOutput, kResidual, kGain, kNext, kNextSums, kBest };
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
  i32 epilogue;       // Epilogue
  i32 output_stride;  // kStore, kLogits: floats per token. kSiluMul: K of the consumer
  i32 norm_size;      // 0: no norm; else columns of x, the sums being over blocks of 16 of them
  float epsilon;
  i32 has_bias;
};

// The best logit of 16 neighbouring ids, ties to the lower one.
struct BestLogit {
  float value;
  i32 id;
};
inline constexpr i32 kBestIds = 16;

template <class T>
struct LinearEpilogue {
  const Task<LinearParams>& t;
  const float* scale;  // of each token, if there is a norm
  i32 tokens, tile_tokens;

  // What an output needs from memory, so that it can be asked for long before.
  struct Loaded {
    float residual, gain, bias;
  };
  // What 16 neighbouring rows leave together: a sum of squares, or the best logit.
  using Carry = BestLogit;

  // Row of the tile, token of the tile.
  EVT_FN Loaded Load(i32 row, i32 token) const {
    const LinearParams& p = t.params();
    const i32 r = Row(row);
    Loaded loaded{0.0f, 0.0f, 0.0f};
    if (token >= tokens) return loaded;
    // Padded to whole tiles.
    if (p.has_bias) loaded.bias = ToFloat(t.Operand<const T>(LinearOperand::kBias)[r]);
    if (p.epilogue == LinearParams::kResidual && r < p.rows) {
      loaded.residual = *Residual(r, token);
      loaded.gain = ToFloat(t.Operand<const T>(LinearOperand::kGain)[r]);
    }
    return loaded;
  }

  EVT_FN float Value(i32 token, float product, const Loaded& loaded) const {
    const LinearParams& p = t.params();
    const float y = p.norm_size > 0 ? Multiply(product, scale[token]) : product;
    return p.has_bias ? Add(y, loaded.bias) : y;
  }

  // y: Value of (row, token); partner: of row ^ 8 of the same block.
  EVT_FN Carry Emit(i32 row, i32 token, float y, float partner, const Loaded& loaded) const {
    const LinearParams& p = t.params();
    const i32 r = Row(row);
    const i64 at = Token(token);
    if (p.epilogue == LinearParams::kSiluMul) {
      const i32 column = r / 16 * 8 + r % 16;
      if (row % 16 >= 8 || column >= p.output_stride) return None();
      T* out = t.Operand<T>(LinearOperand::kOutput);
      out[ActivationIndex(p.output_stride, static_cast<i32>(at), column)] =
          Storage<T>::From(Multiply(Silu(y), partner));
      return None();
    }
    if (r >= p.rows) return None();
    if (p.epilogue == LinearParams::kResidual) {
      const float sum = Add(loaded.residual, y);
      *Residual(r, token) = sum;
      T* next = t.Operand<T>(LinearOperand::kNext);
      next[ActivationIndex(p.rows, static_cast<i32>(at), r)] =
          Storage<T>::From(Multiply(sum, loaded.gain));
      return {Multiply(sum, sum), r};
    }
    t.Operand<float>(LinearOperand::kOutput)[at * p.output_stride + r] = y;
    return {y, r};
  }

  // Rows that carry nothing lose to any others.
  EVT_FN Carry None() const {
    const bool sums = t.params().epilogue == LinearParams::kResidual;
    return {sums ? 0.0f : BitsFloat(0x7fc00000u), 0x7fffffff};
  }
  EVT_FN bool Carries() const {
    const i32 epilogue = t.params().epilogue;
    return epilogue == LinearParams::kResidual || epilogue == LinearParams::kLogits;
  }
  EVT_FN Carry Combine(const Carry& a, const Carry& b) const {
    if (t.params().epilogue == LinearParams::kResidual) return {Add(a.value, b.value), a.id};
    // NaN loses to any number.
    const bool a_number = a.value == a.value, b_number = b.value == b.value;
    if (a_number != b_number) return a_number ? a : b;
    if (a.value > b.value) return a;
    if (b.value > a.value) return b;
    return a.id < b.id ? a : b;
  }
  // Of the tile's block of 16 rows.
  EVT_FN void Reduced(i32 block, i32 token, const Carry& carry) const {
    const LinearParams& p = t.params();
    const i32 blocks = CeilDiv(p.rows, 16), at = Row(block * 16) / 16;
    if (at >= blocks) return;
    const i64 index = Token(token) * blocks + at;
    if (p.epilogue == LinearParams::kResidual) {
      t.Operand<float>(LinearOperand::kNextSums)[index] = carry.value;
    } else {
      t.Operand<BestLogit>(LinearOperand::kBest)[index] = carry;
    }
  }

 private:
  EVT_FN i32 Row(i32 row) const { return t.at.at[1] * t.params().tile_rows + row; }
  EVT_FN i64 Token(i32 token) const { return static_cast<i64>(t.at.at[0]) * tile_tokens + token; }
  EVT_FN float* Residual(i32 r, i32 token) const {
    return t.Operand<float>(LinearOperand::kResidual) + Token(token) * t.params().rows + r;
  }
  static EVT_FN float Silu(float v) {
    constexpr float kLog2E = 1.4426950408889634f;
    return Divide(v, Add(1.0f, Exp2(Multiply(-v, kLog2E))));
  }
};

}  // namespace eventide
