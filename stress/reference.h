// An independent forward pass of Llama and Qwen decoders, dense or with experts, one token at a
// time, in float or double, straight from a weight source: what packed weights, tiles, chunks and events are checked
// against. Shares no code with ops/ or models/decoder, and is written for being read, not for
// speed.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/status.h"
#include "models/config.h"
#include "models/weights.h"

namespace eventide {

// Early exit (ops/exit_tables.h): after `first` layers, and then after every `every` more but the last, a
// token whose state has at least the cosine `threshold` with its state at the place before ends there.
struct ReferenceExits {
  int first = 0, every = 1;  // first 0: nowhere
  double threshold = 2;
};

template <class Real>
class Reference {
 public:
  void SetExits(const ReferenceExits& exits) { exits_ = exits; }
  // Layers of the last token, and of all its tests the least distance of a cosine from the threshold.
  int layers_of_last() const { return layers_of_last_; }
  double margin_of_last() const { return margin_of_last_; }

  // Weights are rounded to `stored` first: the model that is run is then exactly the one under
  // test.
  static absl::StatusOr<Reference> Load(const WeightSource& source, DType stored) {
    Reference r;
    r.config_ = source.config();
    const ModelConfig& c = r.config_;
    ASSIGN_OR_RETURN(r.embedding_, ReadAll(source, "model.embed_tokens.weight", stored));
    for (int l = 0; l < c.layers; ++l) {
      const std::string p = absl::StrCat("model.layers.", l, ".");
      Layer layer;
      ASSIGN_OR_RETURN(layer.input_norm, ReadAll(source, p + "input_layernorm.weight", stored));
      ASSIGN_OR_RETURN(layer.post_norm,
                       ReadAll(source, p + "post_attention_layernorm.weight", stored));
      if (c.qk_norm || c.wide_qk_norm) {
        ASSIGN_OR_RETURN(layer.q_norm, ReadAll(source, p + "self_attn.q_norm.weight", stored));
        ASSIGN_OR_RETURN(layer.k_norm, ReadAll(source, p + "self_attn.k_norm.weight", stored));
      }
      const std::string a = p + "self_attn.", m = p + "mlp.";
      const bool ab = c.attention_bias, ob = c.attention_output_bias, mb = c.mlp_bias;
      ASSIGN_OR_RETURN(layer.q, ReadMatrix(source, a + "q_proj", stored, ab));
      ASSIGN_OR_RETURN(layer.k, ReadMatrix(source, a + "k_proj", stored, ab));
      ASSIGN_OR_RETURN(layer.v, ReadMatrix(source, a + "v_proj", stored, ab));
      ASSIGN_OR_RETURN(layer.o, ReadMatrix(source, a + "o_proj", stored, ob));
      if (c.IsMoe()) {
        RETURN_IF_ERROR(ReadExperts(source, l, stored, &layer));
      } else {
        ASSIGN_OR_RETURN(layer.mlp, ReadMlp(source, m, {"gate_proj", "up_proj", "down_proj"},
                                            stored, mb));
      }
      r.layers_.push_back(std::move(layer));
    }
    ASSIGN_OR_RETURN(r.final_norm_, ReadAll(source, "model.norm.weight", stored));
    if (c.tie_embeddings) {
      r.head_ = r.embedding_;
    } else {
      ASSIGN_OR_RETURN(r.head_, ReadAll(source, "lm_head.weight", stored));
    }
    r.keys_.resize(c.layers);
    r.values_.resize(c.layers);
    return r;
  }

  // Forgets the sequence.
  void Reset() {
    position_ = 0;
    for (auto& k : keys_) k.clear();
    for (auto& v : values_) v.clear();
  }

  // Appends a token to the sequence; the logits of what comes after it.
  std::vector<Real> Next(int token) {
    const size_t hidden = config_.hidden;
    std::vector<Real> x(embedding_.begin() + token * hidden,
                        embedding_.begin() + (token + 1) * hidden);
    std::vector<Real> before = x;
    layers_of_last_ = config_.layers;
    margin_of_last_ = INFINITY;
    for (int l = 0; l < config_.layers; ++l) {
      const Layer& layer = layers_[l];
      if (l >= layers_of_last_) {
        Remember(l, RmsNorm(x, layer.input_norm));
        continue;
      }
      Accumulate(x, Attend(l, RmsNorm(x, layer.input_norm)));
      const std::vector<Real> h = RmsNorm(x, layer.post_norm);
      Accumulate(x, config_.IsMoe() ? Mix(layer, h) : Apply(layer.mlp, h));
      const int done = l + 1;
      if (exits_.first == 0 || done < exits_.first || done == config_.layers ||
          (done - exits_.first) % exits_.every != 0) {
        continue;
      }
      const double cosine = Dot(x, before) / std::sqrt(Dot(x, x) * Dot(before, before));
      margin_of_last_ = std::min(margin_of_last_, std::fabs(cosine - exits_.threshold));
      if (cosine >= exits_.threshold) layers_of_last_ = done;
      before = x;
    }
    ++position_;
    return Multiply({head_, {}}, RmsNorm(x, final_norm_));
  }

  // The logits after every token of a sequence.
  std::vector<std::vector<Real>> All(const std::vector<int>& tokens) {
    Reset();
    std::vector<std::vector<Real>> logits;
    for (int token : tokens) logits.push_back(Next(token));
    return logits;
  }

  const ModelConfig& config() const { return config_; }

 private:
  struct Matrix {
    std::vector<Real> weight, bias;
  };
  struct Mlp {
    Matrix gate, up, down;
  };
  struct Layer {
    std::vector<Real> input_norm, post_norm, q_norm, k_norm;
    Matrix q, k, v, o, router, shared_gate;
    Mlp mlp;  // of a mixture of experts: the shared one
    std::vector<Mlp> experts;
  };

  static absl::StatusOr<Mlp> ReadMlp(const WeightSource& source, const std::string& prefix,
                                     const std::vector<std::string>& names, DType stored,
                                     bool bias) {
    Mlp mlp;
    ASSIGN_OR_RETURN(mlp.gate, ReadMatrix(source, prefix + names[0], stored, bias));
    ASSIGN_OR_RETURN(mlp.up, ReadMatrix(source, prefix + names[1], stored, bias));
    ASSIGN_OR_RETURN(mlp.down, ReadMatrix(source, prefix + names[2], stored, bias));
    return mlp;
  }

  static absl::Status ReadExperts(const WeightSource& source, int l, DType stored, Layer* layer) {
    const ModelConfig& c = source.config();
    const ExpertNames names = ExpertNamesOf(c, l);
    ASSIGN_OR_RETURN(layer->router, ReadMatrix(source, names.router, stored, false));
    for (int e = 0; e < c.num_experts; ++e) {
      ASSIGN_OR_RETURN(Mlp expert, ReadMlp(source, absl::StrCat(names.experts, ".", e, "."),
                                           {names.gate, names.up, names.down}, stored, false));
      layer->experts.push_back(std::move(expert));
    }
    if (c.shared_intermediate == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(layer->mlp, ReadMlp(source, names.shared + ".",
                                         {"gate_proj", "up_proj", "down_proj"}, stored, false));
    ASSIGN_OR_RETURN(layer->shared_gate, ReadMatrix(source, names.shared_gate, stored, false));
    return absl::OkStatus();
  }

  static std::vector<Real> Apply(const Mlp& mlp, const std::vector<Real>& h) {
    std::vector<Real> gate = Multiply(mlp.gate, h);
    const std::vector<Real> up = Multiply(mlp.up, h);
    for (size_t i = 0; i < gate.size(); ++i)
      gate[i] = gate[i] / (Real(1) + std::exp(-gate[i])) * up[i];
    return Multiply(mlp.down, gate);
  }

  // The softmax's best experts, of equal ones the lower, weighted by their shares.
  std::vector<Real> Mix(const Layer& layer, const std::vector<Real>& h) const {
    std::vector<Real> p = Multiply(layer.router, h);
    std::vector<int> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
    const Real top = p[order[0]];
    for (Real& v : p) v = std::exp(v - top);
    order.resize(config_.experts_per_token);
    Real sum = 0;
    if (config_.norm_topk_prob) {
      for (int e : order) sum += p[e];
    } else {
      sum = std::accumulate(p.begin(), p.end(), Real(0));
    }
    std::vector<Real> out(h.size(), 0);
    const auto add = [&](const std::vector<Real>& y, Real weight) {
      for (size_t i = 0; i < out.size(); ++i) out[i] += weight * y[i];
    };
    for (int e : order) add(Apply(layer.experts[e], h), p[e] / sum);
    if (config_.shared_intermediate > 0) {
      const Real gate = Multiply(layer.shared_gate, h)[0];
      add(Apply(layer.mlp, h), Real(1) / (Real(1) + std::exp(-gate)));
    }
    return out;
  }

  static absl::StatusOr<std::vector<Real>> ReadAll(const WeightSource& source,
                                                   const std::string& name, DType stored) {
    ASSIGN_OR_RETURN(const TensorInfo info, source.Info(name));
    const int64_t n = info.Elements();
    std::vector<uint8_t> raw(n * DTypeSize(stored));
    RETURN_IF_ERROR(source.Read(name, 0, n, stored, raw.data()));
    std::vector<float> values(n);
    ConvertElements(stored, raw.data(), DType::kF32, values.data(), n);
    return std::vector<Real>(values.begin(), values.end());
  }

  static absl::StatusOr<Matrix> ReadMatrix(const WeightSource& source, const std::string& name,
                                           DType stored, bool bias) {
    Matrix matrix;
    ASSIGN_OR_RETURN(matrix.weight, ReadAll(source, name + ".weight", stored));
    if (bias) {
      ASSIGN_OR_RETURN(matrix.bias, ReadAll(source, name + ".bias", stored));
    }
    return matrix;
  }

  static std::vector<Real> Multiply(const Matrix& m, const std::vector<Real>& x) {
    std::vector<Real> y(m.weight.size() / x.size());
    for (size_t row = 0; row < y.size(); ++row) {
      Real sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += m.weight[row * x.size() + i] * x[i];
      y[row] = m.bias.empty() ? sum : sum + m.bias[row];
    }
    return y;
  }

  static void Accumulate(std::vector<Real>& x, const std::vector<Real>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  std::vector<Real> RmsNorm(std::vector<Real> x, const std::vector<Real>& weight) const {
    Real sum = 0;
    for (Real v : x) sum += v * v;
    const Real scale = Real(1) / std::sqrt(sum / Real(x.size()) + Real(config_.rms_eps));
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] * scale * weight[i];
    return x;
  }

  // Angle per position of pair i: theta^(-2i/d), stretched as the configuration says. The llama3
  // rule is that of the model's paper: wavelengths beyond the original context are divided by the
  // factor, those well inside stay, and between them the two are blended linearly in (context /
  // wavelength).
  double Frequency(int i) const {
    const RopeConfig& rope = config_.rope;
    const double base = std::pow(rope.theta, -2.0 * i / config_.head_dim);
    if (rope.type == RopeType::kLinear) return base / rope.factor;
    if (rope.type == RopeType::kLlama3) {
      const double turns = rope.original_max_positions * base / (2 * 3.14159265358979323846);
      if (turns < rope.low_freq_factor) return base / rope.factor;
      if (turns > rope.high_freq_factor) return base;
      const double blend =
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      return (1 - blend) * base / rope.factor + blend * base;
    }
    return base;
  }

  // Norm and rotation of each head of q or k, in place.
  void PrepareHeads(std::vector<Real>& heads, const std::vector<Real>& norm) const {
    const int d = config_.head_dim;
    if (config_.wide_qk_norm) heads = RmsNorm(heads, norm);
    for (size_t at = 0; at < heads.size(); at += d) {
      if (config_.qk_norm) {
        const std::vector<Real> normed =
            RmsNorm({heads.begin() + at, heads.begin() + at + d}, norm);
        std::copy(normed.begin(), normed.end(), heads.begin() + at);
      }
      for (int i = 0; i < d / 2; ++i) {
        const double angle = position_ * Frequency(i);
        const Real cos = Real(std::cos(angle)), sin = Real(std::sin(angle));
        const Real a = heads[at + i], b = heads[at + i + d / 2];
        heads[at + i] = a * cos - b * sin;
        heads[at + i + d / 2] = b * cos + a * sin;
      }
    }
  }

  static double Dot(const std::vector<Real>& a, const std::vector<Real>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  }

  // Appends the token's key and value to a layer's.
  void Remember(int l, const std::vector<Real>& h) {
    const Layer& layer = layers_[l];
    std::vector<Real> k = Multiply(layer.k, h);
    const std::vector<Real> v = Multiply(layer.v, h);
    PrepareHeads(k, layer.k_norm);
    keys_[l].insert(keys_[l].end(), k.begin(), k.end());
    values_[l].insert(values_[l].end(), v.begin(), v.end());
  }

  std::vector<Real> Attend(int l, const std::vector<Real>& h) {
    const Layer& layer = layers_[l];
    const int d = config_.head_dim, kv = config_.kv_heads, group = config_.heads / kv;
    std::vector<Real> q = Multiply(layer.q, h);
    PrepareHeads(q, layer.q_norm);
    Remember(l, h);
    const int window = config_.Window(l);
    const int first = window > 0 ? std::max(0, position_ - window + 1) : 0;
    std::vector<Real> out(q.size(), 0), p(position_ + 1);
    for (int head = 0; head < config_.heads; ++head) {
      Real top = -INFINITY, sum = 0;
      for (int j = first; j <= position_; ++j) {
        const Real* key = &keys_[l][(size_t(j) * kv + head / group) * d];
        p[j] = 0;
        for (int i = 0; i < d; ++i) p[j] += q[head * d + i] * key[i];
        p[j] /= std::sqrt(Real(d));
        top = std::max(top, p[j]);
      }
      for (int j = first; j <= position_; ++j) sum += p[j] = std::exp(p[j] - top);
      for (int j = first; j <= position_; ++j) {
        const Real* value = &values_[l][(size_t(j) * kv + head / group) * d];
        for (int i = 0; i < d; ++i) out[head * d + i] += p[j] / sum * value[i];
      }
    }
    return Multiply(layer.o, out);
  }

  ModelConfig config_;
  std::vector<Real> embedding_, final_norm_, head_;
  std::vector<Layer> layers_;
  ReferenceExits exits_;
  int layers_of_last_ = 0;
  double margin_of_last_ = 0;
  int position_ = 0;
  std::vector<std::vector<Real>> keys_, values_;  // [layer]: [position][kv_head][head_dim]
};

// The index of the largest, the lowest of equal ones.
template <class Real>
int Argmax(const std::vector<Real>& values) {
  return int(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace eventide
