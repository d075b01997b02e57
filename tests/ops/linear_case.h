// Linears as tests: stored values, packing, exact products in float64, checks of every epilogue.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include "device/layout.h"
#include "ops/linear.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

struct LinearShape {
  int tokens, rows, k;
  bool norm = false, bias = false;
  LinearParams::Epilogue epilogue = LinearParams::kStore;
  int tile_rows = 32, tiles = 1;
  int team = 1;  // tasks are a multiple of it
};

// Stored values of one linear, and its exact results.
template <class T>
struct LinearData {
  LinearShape s;
  std::vector<T> weight, input, bias, gain;  // row-major
  std::vector<float> sums, residual;
  std::vector<double> y, bound;  // [token][row], before the epilogue; error of fp32 arithmetic

  explicit LinearData(const LinearShape& shape) : s(shape) {
    RandomValues random(static_cast<uint64_t>(s.tokens * 1000003 + s.rows * 1009 + s.k));
    weight = random.Normals<T>(static_cast<size_t>(s.rows) * s.k, 0.5);
    input = random.Normals<T>(static_cast<size_t>(s.tokens) * s.k);
    bias = random.Normals<T>(RoundUp(s.rows, 32));
    gain = random.Normals<T>(s.rows, 0.1, 1.0);
    residual = random.Normals<float>(static_cast<size_t>(s.tokens) * s.rows);
    const int blocks = CeilDiv(s.k, 16);
    sums.resize(static_cast<size_t>(s.tokens) * blocks);
    for (float& v : sums) v = static_cast<float>(16 + random.Below(16));
    y.resize(static_cast<size_t>(s.tokens) * s.rows);
    bound.resize(y.size());
    for (int t = 0; t < s.tokens; ++t) {
      double norm = 0;
      for (int b = 0; b < blocks; ++b) norm += sums[t * blocks + b];
      const double scale = s.norm ? 1 / std::sqrt(norm / s.k + 1e-5) : 1.0;
      for (int r = 0; r < s.rows; ++r) {
        double dot = 0, size = 0;
        for (int i = 0; i < s.k; ++i) {
          const double product =
              static_cast<double>(ToFloat(weight[static_cast<size_t>(r) * s.k + i])) *
              ToFloat(input[static_cast<size_t>(t) * s.k + i]);
          dot += product;
          size += std::abs(product);
        }
        const double offset = s.bias ? ToFloat(bias[r]) : 0.0;
        y[t * s.rows + r] = dot * scale + offset;
        // A segment's chain has k / 8 + 16 additions at most, then 8 segments, scale, bias.
        bound[t * s.rows + r] =
            (size * scale * (s.k / 8.0 + 40) + std::abs(offset) * 2) * 0x1p-24 + 1e-30;
      }
    }
  }
  std::vector<T> Packed(const OpBackend& backend) const {
    std::vector<T> packed(static_cast<size_t>(PackedTile(s.tile_rows, s.k)) * CeilDiv(s.rows, s.tile_rows), T{});
    for (int r = 0; r < s.rows; ++r) {
      for (int i = 0; i < s.k; ++i) {
        packed[PackedFragment(s.tile_rows, s.k, r, i) + backend.FragmentOrder(r % 16, i % 16)] =
            weight[static_cast<size_t>(r) * s.k + i];
      }
    }
    return packed;
  }
  // Tokens of the last group of 8 that do not exist are NaN; the padding of K is zero.
  std::vector<T> Activations() const {
    std::vector<T> a(static_cast<size_t>(ActivationGroup(s.k)) * CeilDiv(s.tokens, 8), T{});
    for (int t = 0; t < RoundUp(s.tokens, 8); ++t) {
      for (int i = 0; i < s.k; ++i) {
        a[ActivationIndex(s.k, t, i)] =
            t < s.tokens ? input[static_cast<size_t>(t) * s.k + i] : Storage<T>::From(NAN);
      }
    }
    return a;
  }
};

template <class T>
class LinearCase {
 public:
  LinearCase(const OpBackend& backend, const LinearData<T>& data)
      : data_(data), s_(data.s), rig_("linear") {
    const int k_out = s_.rows / 2, tasks = CeilDiv(s_.rows, s_.tile_rows * s_.tiles);
    const Expr tokens = rig_.graph().AddSymbol("tokens", 0, 600);
    const TensorId weight = rig_.Input("weight", data.Packed(backend));
    const TensorId input = rig_.Input("input", data.Activations());
    const TensorId bias = rig_.Input("bias", data.bias);
    const TensorId sums = rig_.Input("sums", data.sums);
    const TensorId count = rig_.Input("count", std::vector<i32>{-1, s_.tokens});
    const bool silu = s_.epilogue == LinearParams::kSiluMul;
    const size_t cells = static_cast<size_t>(s_.tokens) * s_.rows;
    if (silu) {
      output_ = rig_.template Output<T>("output", CeilDiv(s_.tokens, 8) * ActivationGroup(k_out));
    } else {
      output_ = rig_.template Output<float>("output", static_cast<size_t>(s_.tokens) * Stride());
    }
    residual_ = rig_.Add("residual", TensorRole::kState, data.residual);
    const TensorId gain = rig_.Input("gain", data.gain);
    next_ = rig_.template Output<T>("next", CeilDiv(s_.tokens, 8) * ActivationGroup(s_.rows));
    next_sums_ = rig_.template Output<float>("next_sums",
                                             static_cast<size_t>(s_.tokens) * CeilDiv(s_.rows, 16));
    best_ = rig_.template Output<i32>("best", static_cast<size_t>(s_.tokens) * CeilDiv(s_.rows, kBestIds) * 2);
    static_cast<void>(cells);
    rig_.graph().Call<Linear>(
        "linear",
        {weight, input, bias, sums, count, output_, residual_, gain, next_, next_sums_, best_,
         count, count},
        {rig_.graph().Dim(tokens), s_.bias ? 1 : -1, s_.rows, s_.k, s_.tile_rows, s_.tiles, s_.epilogue,
         silu ? k_out : Stride(), s_.norm ? s_.k : 0, 1e-5f, s_.bias, 0, 0, s_.team},
        {CeilDiv(tokens, Linear::TileTokens(sizeof(T)) * s_.team), tasks}, Storage<T>::kVariant);
    rig_.Start(backend);
    StepHeader header = {};
    header.symbols[0] = s_.tokens;
    rig_.Step(header);
  }

  void Check() {
    switch (s_.epilogue) {
      case LinearParams::kStore:
      case LinearParams::kLogits:
        return CheckStore();
      case LinearParams::kResidual:
        return CheckResidual();
      case LinearParams::kSiluMul:
        return CheckSilu();
    }
  }
  // All bits of the plain output.
  std::vector<i32> Bits() { return rig_.template Get<i32>(output_); }

 private:
  int Stride() const { return RoundUp(s_.rows, 32); }

  void CheckStore() {
    const std::vector<float> out = rig_.template Get<float>(output_);
    WorstError error;
    bool padding = true;
    for (int t = 0; t < s_.tokens; ++t) {
      for (int r = 0; r < Stride(); ++r) {
        if (r < s_.rows) {
          error.Add(out[t * Stride() + r], data_.y[t * s_.rows + r], data_.bound[t * s_.rows + r]);
        } else {
          padding = padding && std::isnan(out[t * Stride() + r]);
        }
      }
    }
    CHECK(error.ratio <= 1);
    CHECK(padding);
    const std::vector<i32> best = rig_.template Get<i32>(best_);
    if (s_.epilogue != LinearParams::kLogits) {
      CHECK(std::count(best.begin(), best.end(), -1) == static_cast<i64>(best.size()));
      return;
    }
    const int blocks = CeilDiv(s_.rows, kBestIds);
    for (int t = 0; t < s_.tokens; ++t) {
      for (int block = 0; block < blocks; ++block) {
        const auto first = out.begin() + t * Stride() + block * kBestIds;
        const auto top = std::max_element(first, first + std::min(kBestIds, s_.rows - block * kBestIds));
        const i32* found = &best[(t * blocks + block) * 2];
        REQUIRE(std::bit_cast<float>(found[0]) == *top);
        REQUIRE(found[1] == block * kBestIds + static_cast<int>(top - first));
      }
    }
  }

  void CheckResidual() {
    const std::vector<float> x = rig_.template Get<float>(residual_);
    const std::vector<float> sums = rig_.template Get<float>(next_sums_);
    const std::vector<T> next = rig_.template Get<T>(next_);
    WorstError error, sum_error;
    bool exact = true;
    for (int t = 0; t < s_.tokens; ++t) {
      for (int b = 0; b < CeilDiv(s_.rows, 16); ++b) {
        double sum = 0;
        for (int r = b * 16; r < std::min(s_.rows, b * 16 + 16); ++r) {
          const size_t i = static_cast<size_t>(t) * s_.rows + r;
          const double want = data_.y[i] + data_.residual[i];
          error.Add(x[i], want, data_.bound[i] + std::abs(want) * 0x1p-23);
          const T expected = Storage<T>::From(x[i] * ToFloat(data_.gain[r]));
          exact = exact && ToFloat(next[ActivationIndex(s_.rows, t, r)]) == ToFloat(expected);
          sum += static_cast<double>(x[i]) * x[i];
        }
        sum_error.Add(sums[t * CeilDiv(s_.rows, 16) + b], sum, 17 * 0x1p-24 * sum + 1e-30);
      }
    }
    CHECK(error.ratio <= 1);
    CHECK(sum_error.ratio <= 1);
    CHECK(exact);
  }

  // Within each 16 rows the first 8 are gates, the others their factors.
  void CheckSilu() {
    const std::vector<T> out = rig_.template Get<T>(output_);
    WorstError error;
    for (int t = 0; t < s_.tokens; ++t) {
      for (int c = 0; c < s_.rows / 2; ++c) {
        const size_t gate = static_cast<size_t>(t) * s_.rows + c / 8 * 16 + c % 8;
        const double g = data_.y[gate], u = data_.y[gate + 8];
        const double want = g / (1 + std::exp(-g)) * u;
        // silu's slope is at most 1.1.
        const double bound =
            1.1 * data_.bound[gate] * std::abs(u) + data_.bound[gate + 8] * std::abs(g) +
            std::abs(want) * (2 * Epsilon<T>() + (8 + std::abs(g)) * 0x1p-22) + 1e-7;
        error.Add(ToFloat(out[ActivationIndex(s_.rows / 2, t, c)]), want, bound);
      }
    }
    CHECK(error.ratio <= 1);
  }

  const LinearData<T>& data_;
  const LinearShape s_;
  OpRig rig_;
  TensorId output_, residual_, next_, next_sums_, best_;
};

template <class T>
void CheckLinear(const std::vector<OpBackend>& backends, const LinearShape& shape) {
  const LinearData<T> data(shape);
  for (const OpBackend& backend : backends) {
    INFO(backend.name << ": " << shape.tokens << " tokens, " << shape.rows << " x " << shape.k
                      << ", epilogue " << shape.epilogue);
    LinearCase<T>(backend, data).Check();
  }
}

}  // namespace eventide
