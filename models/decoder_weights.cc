// Which checkpoint rows make up each packed row of a decoder's weights.
#include "absl/strings/str_cat.h"
#include "models/decoder_parts.h"

namespace eventide {
namespace {

// The weight's job and, where there is a bias, the same rows with one column. `names` are without
// ".weight" and ".bias".
void AddLinearJobs(const std::vector<std::string>& names, std::vector<RowSpan> spans, int rows,
                   int columns, DType storage, int layer, LinearTensors to,
                   std::vector<PackJob>* jobs) {
  PackJob weight;
  weight.tensor = to.weight;
  weight.form = PackForm::kTiles;
  weight.rows = rows;
  weight.columns = columns;
  weight.height = TileRows(rows);
  weight.spans = spans;
  for (const std::string& name : names) weight.sources.push_back(name + ".weight");
  weight.offset = layer * PackedBytes(weight, storage);
  jobs->push_back(std::move(weight));
  if (to.bias < 0) return;
  PackJob bias;
  bias.tensor = to.bias;
  bias.rows = rows;
  bias.columns = 1;
  bias.spans = std::move(spans);
  for (const std::string& name : names) bias.sources.push_back(name + ".bias");
  bias.offset = layer * PackedBytes(bias, storage);
  jobs->push_back(std::move(bias));
}

void AddQkvJobs(const ModelConfig& c, DType storage, int layer, LinearTensors to,
                std::vector<PackJob>* jobs) {
  const DecoderShape shape(c);
  const std::string prefix = absl::StrCat("model.layers.", layer, ".self_attn.");
  std::vector<RowSpan> spans;
  for (int head = 0; head < c.kv_heads; ++head) {
    const int64_t row = int64_t{head} * shape.qkv_stride;
    const int64_t queries = int64_t{shape.group} * c.head_dim;
    spans.push_back({row, 0, head * queries, queries});
    spans.push_back({row + queries, 1, int64_t{head} * c.head_dim, c.head_dim});
    spans.push_back({row + queries + c.head_dim, 2, int64_t{head} * c.head_dim, c.head_dim});
  }
  AddLinearJobs({prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"}, std::move(spans),
                shape.qkv_rows, c.hidden, storage, layer, to, jobs);
}

// The same rows of keys and values by themselves, for tokens that left.
void AddKeyValueJobs(const ModelConfig& c, DType storage, int layer, LinearTensors to,
                     std::vector<PackJob>* jobs) {
  const DecoderShape shape(c);
  const std::string prefix = absl::StrCat("model.layers.", layer, ".self_attn.");
  std::vector<RowSpan> spans;
  for (int head = 0; head < c.kv_heads; ++head) {
    for (int source = 0; source < 2; ++source) {
      spans.push_back({int64_t{head} * shape.kv_stride + source * c.head_dim, source,
                       int64_t{head} * c.head_dim, c.head_dim});
    }
  }
  AddLinearJobs({prefix + "k_proj", prefix + "v_proj"}, std::move(spans),
                c.kv_heads * shape.kv_stride, c.hidden, storage, layer, to, jobs);
}

// Rows of a gate and its factor alternate by 8. `instance`: of the layer, or of an expert of it.
void AddGateUpJobs(std::vector<std::string> names, int width, int packed_rows, int hidden,
                   DType storage, int instance, LinearTensors to, std::vector<PackJob>* jobs) {
  std::vector<RowSpan> spans;
  for (int first = 0; first < width; first += 8) {
    const int rows = Min(8, width - first);
    spans.push_back({2 * first, 0, first, rows});
    spans.push_back({2 * first + 8, 1, first, rows});
  }
  AddLinearJobs(names, std::move(spans), packed_rows, hidden, storage, instance, to, jobs);
}

void AddPlainJobs(const std::string& name, int rows, int columns, DType storage, int layer,
                  LinearTensors to, std::vector<PackJob>* jobs) {
  AddLinearJobs({name}, {{0, 0, 0, rows}}, RoundUp(rows, kTileRows), columns, storage, layer, to,
                jobs);
}

void AddVectorJob(const std::string& name, int elements, DType storage, int instance, int tensor,
                  std::vector<PackJob>* jobs) {
  PackJob job;
  job.tensor = tensor;
  job.rows = elements;
  job.columns = 1;
  job.sources = {name};
  job.spans = {{0, 0, 0, elements}};
  job.offset = instance * PackedBytes(job, storage);
  jobs->push_back(std::move(job));
}

// The MLP that every token passes.
void AddMlpJobs(const ModelConfig& c, const std::string& prefix, DType storage, int layer,
                const DecoderTensors& t, std::vector<PackJob>* jobs) {
  const DecoderShape shape(c);
  AddGateUpJobs({prefix + "gate_proj", prefix + "up_proj"}, shape.dense_width, shape.mlp_rows,
                c.hidden, storage, layer, t.gate_up_w, jobs);
  AddPlainJobs(prefix + "down_proj", c.hidden, shape.dense_width, storage, layer, t.down_w, jobs);
}

void AddExpertJobs(const ModelConfig& c, DType storage, int layer, const DecoderTensors& t,
                   std::vector<PackJob>* jobs) {
  const DecoderShape shape(c);
  const ExpertNames names = ExpertNamesOf(c, layer);
  std::vector<std::string> router = {names.router};
  std::vector<RowSpan> rows = {{0, 0, 0, c.num_experts}};
  if (c.shared_intermediate > 0) {
    router.push_back(names.shared_gate);
    rows.push_back({c.num_experts, 1, 0, 1});
    AddMlpJobs(c, names.shared + ".", storage, layer, t, jobs);
  }
  AddLinearJobs(router, std::move(rows), RoundUp(shape.router_rows, kTileRows), c.hidden, storage,
                layer, t.experts.router_w, jobs);
  const size_t first = jobs->size();
  for (int expert = 0; expert < c.num_experts; ++expert) {
    const std::string prefix = absl::StrCat(names.experts, ".", expert, ".");
    const int instance = layer * c.num_experts + expert;
    AddGateUpJobs({prefix + names.gate, prefix + names.up}, c.moe_intermediate, shape.expert_rows,
                  c.hidden, storage, instance, t.experts.gate_up_w, jobs);
    AddPlainJobs(prefix + names.down, c.hidden, c.moe_intermediate, storage, instance,
                 t.experts.down_w, jobs);
  }
  // There are tasks enough: expert linears have tall tiles, whatever their size.
  for (size_t i = first; i < jobs->size(); ++i) (*jobs)[i].height = kTileRows;
}

}  // namespace

std::vector<PackJob> DecoderJobs(const Decoder& decoder, const DecoderTensors& t) {
  const ModelConfig& c = decoder.config;
  std::vector<PackJob> list;
  std::vector<PackJob>* jobs = &list;
  const DType type = decoder.storage;
  const std::string embedding = "model.embed_tokens";
  if (!c.tie_embeddings) {
    PackJob job;
    job.tensor = t.table.index;
    job.rows = c.vocab;
    job.columns = c.hidden;
    job.sources = {embedding + ".weight"};
    job.spans = {{0, 0, 0, c.vocab}};
    jobs->push_back(std::move(job));
  }
  for (int layer = 0; layer < c.layers; ++layer) {
    const std::string p = absl::StrCat("model.layers.", layer, ".");
    const auto vector = [&](const char* name, int elements, TensorId tensor) {
      AddVectorJob(p + name, elements, type, layer, tensor.index, jobs);
    };
    vector("input_layernorm.weight", c.hidden, t.norm_a);
    vector("post_attention_layernorm.weight", c.hidden, t.norm_m);
    if (c.qk_norm || c.wide_qk_norm) {
      const bool wide = c.wide_qk_norm;
      vector("self_attn.q_norm.weight", wide ? c.QueryWidth() : c.head_dim, t.q_norm);
      vector("self_attn.k_norm.weight", wide ? c.KeyValueWidth() : c.head_dim, t.k_norm);
    }
    AddQkvJobs(c, type, layer, t.qkv_w, jobs);
    if (decoder.HasExits()) AddKeyValueJobs(c, type, layer, t.exits.kv_w, jobs);
    AddPlainJobs(p + "self_attn.o_proj", c.hidden, c.QueryWidth(), type, layer, t.o_w, jobs);
    if (c.IsMoe()) {
      AddExpertJobs(c, type, layer, t, jobs);
    } else {
      AddMlpJobs(c, p + "mlp.", type, layer, t, jobs);
    }
  }
  AddVectorJob("model.norm.weight", c.hidden, type, c.layers, t.norm_a.index, jobs);
  AddPlainJobs(c.tie_embeddings ? embedding : "lm_head", c.vocab, c.hidden, type, 0, t.head_w,
               jobs);
  return list;
}

}  // namespace eventide
