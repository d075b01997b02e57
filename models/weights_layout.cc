// Which tensors a configuration has, and the check that a source has exactly those.
#include <algorithm>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/status.h"
#include "models/weights.h"

namespace eventide {
namespace {

class Layout {
 public:
  explicit Layout(const ModelConfig& config) : c_(config) {}

  std::vector<TensorInfo> Build() {
    Add("model.embed_tokens.weight", {c_.vocab, c_.hidden});
    for (int layer = 0; layer < c_.layers; ++layer) AddLayer(layer);
    Add("model.norm.weight", {c_.hidden});
    if (!c_.tie_embeddings) Add("lm_head.weight", {c_.vocab, c_.hidden});
    return std::move(tensors_);
  }

 private:
  void Add(std::string name, std::vector<int64_t> shape) {
    tensors_.push_back({std::move(name), c_.dtype, std::move(shape)});
  }

  void AddLinear(const std::string& name, int rows, int columns, bool bias) {
    Add(name + ".weight", {rows, columns});
    if (bias) Add(name + ".bias", {rows});
  }

  void AddLayer(int index) {
    const std::string layer = absl::StrCat("model.layers.", index);
    Add(layer + ".input_layernorm.weight", {c_.hidden});
    const std::string attention = layer + ".self_attn";
    AddLinear(attention + ".q_proj", c_.QueryWidth(), c_.hidden, c_.attention_bias);
    AddLinear(attention + ".k_proj", c_.KeyValueWidth(), c_.hidden, c_.attention_bias);
    AddLinear(attention + ".v_proj", c_.KeyValueWidth(), c_.hidden, c_.attention_bias);
    if (c_.qk_norm) {
      Add(attention + ".q_norm.weight", {c_.head_dim});
      Add(attention + ".k_norm.weight", {c_.head_dim});
    } else if (c_.wide_qk_norm) {
      Add(attention + ".q_norm.weight", {c_.QueryWidth()});
      Add(attention + ".k_norm.weight", {c_.KeyValueWidth()});
    }
    AddLinear(attention + ".o_proj", c_.hidden, c_.QueryWidth(), c_.attention_output_bias);
    Add(layer + ".post_attention_layernorm.weight", {c_.hidden});
    if (c_.IsMoe()) {
      AddExperts(index);
    } else {
      AddMlp(layer + ".mlp", c_.intermediate);
    }
  }

  void AddMlp(const std::string& name, int intermediate) {
    AddLinear(name + ".gate_proj", intermediate, c_.hidden, c_.mlp_bias);
    AddLinear(name + ".up_proj", intermediate, c_.hidden, c_.mlp_bias);
    AddLinear(name + ".down_proj", c_.hidden, intermediate, c_.mlp_bias);
  }

  void AddExperts(int layer) {
    const ExpertNames names = ExpertNamesOf(c_, layer);
    AddLinear(names.router, c_.num_experts, c_.hidden, false);
    for (int e = 0; e < c_.num_experts; ++e) {
      const std::string expert = absl::StrCat(names.experts, ".", e, ".");
      AddLinear(expert + names.gate, c_.moe_intermediate, c_.hidden, false);
      AddLinear(expert + names.up, c_.moe_intermediate, c_.hidden, false);
      AddLinear(expert + names.down, c_.hidden, c_.moe_intermediate, false);
    }
    if (c_.shared_intermediate == 0) return;
    AddMlp(names.shared, c_.shared_intermediate);
    AddLinear(names.shared_gate, 1, c_.hidden, false);
  }

  const ModelConfig& c_;
  std::vector<TensorInfo> tensors_;
};

// Tensors that checkpoints carry although the model computes or shares them.
bool IsHarmlessExtra(absl::string_view name, const ModelConfig& config) {
  return absl::EndsWith(name, "rotary_emb.inv_freq") ||
         (config.tie_embeddings && name == "lm_head.weight");
}

// Collects complaints of one sort; a message names the first few and counts the rest.
class Complaints {
 public:
  explicit Complaints(const char* what) : what_(what) {}
  void Add(std::string text) {
    if (++count_ <= kShown) shown_.push_back(std::move(text));
  }
  void AppendTo(std::vector<std::string>* parts) const {
    if (count_ == 0) return;
    std::string text = absl::StrCat(what_, " ", absl::StrJoin(shown_, ", "));
    if (count_ > kShown) absl::StrAppend(&text, " and ", count_ - kShown, " more");
    parts->push_back(std::move(text));
  }

 private:
  static constexpr int kShown = 5;
  const char* what_;
  int count_ = 0;
  std::vector<std::string> shown_;
};

}  // namespace

ExpertNames ExpertNamesOf(const ModelConfig& config, int layer) {
  const bool mixtral = config.family == "mixtral";
  const std::string moe =
      absl::StrCat("model.layers.", layer, mixtral ? ".block_sparse_moe" : ".mlp");
  return {moe + ".gate",
          moe + ".experts",
          mixtral ? "w1" : "gate_proj",
          mixtral ? "w3" : "up_proj",
          mixtral ? "w2" : "down_proj",
          moe + ".shared_expert",
          moe + ".shared_expert_gate"};
}

std::vector<TensorInfo> ExpectedTensors(const ModelConfig& config) {
  return Layout(config).Build();
}

absl::Status CheckComplete(const WeightSource& source) {
  Complaints missing("missing"), misshaped("misshaped"), type("of unusable type"), extra("extra");
  absl::flat_hash_map<std::string, TensorInfo> found;
  for (TensorInfo& info : source.Tensors()) {
    std::string name = info.name;
    found.emplace(std::move(name), std::move(info));
  }
  for (const TensorInfo& expected : ExpectedTensors(source.config())) {
    auto it = found.find(expected.name);
    if (it == found.end()) {
      missing.Add(expected.name);
      continue;
    }
    if (it->second.shape != expected.shape) {
      misshaped.Add(absl::StrCat(expected.name, " (is ", ShapeString(it->second.shape),
                                 ", should be ", ShapeString(expected.shape), ")"));
    }
    if (!IsWeightDType(it->second.dtype)) {
      type.Add(absl::StrCat(expected.name, " (", DTypeName(it->second.dtype), ")"));
    }
    found.erase(it);
  }
  std::set<std::string> left;  // sorted, so that messages do not depend on hashing
  for (const auto& [name, info] : found) {
    if (!IsHarmlessExtra(name, source.config())) left.insert(name);
  }
  for (const std::string& name : left) extra.Add(name);
  std::vector<std::string> parts;
  for (const Complaints* c : {&missing, &misshaped, &type, &extra}) c->AppendTo(&parts);
  if (parts.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the weights do not fit the configuration (", source.config().family, ", ",
                   source.config().layers, " layers): ", absl::StrJoin(parts, "; ")));
}

absl::Status CheckRead(const TensorInfo& info, int64_t first, int64_t count, DType as) {
  if (!IsWeightDType(info.dtype) || !IsWeightDType(as)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", info.name, " of type ",
                                                   DTypeName(info.dtype), " cannot be read as ",
                                                   DTypeName(as)));
  }
  const int64_t elements = info.Elements();
  if (first < 0 || count < 0 || first > elements || count > elements - first) {
    return absl::OutOfRangeError(absl::StrCat("tensor ", info.name, " has ", elements,
                                              " elements; asked for ", count, " from ", first));
  }
  return absl::OkStatus();
}

std::string ShapeString(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace eventide
