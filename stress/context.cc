#include "stress/context.h"

#include <algorithm>

#include "models/random_weights.h"
#include "runtime/sim_executor.h"

namespace eventide {
namespace {

// Fields that make a model; equal ones share it.
constexpr const char* kModelFields[] = {
    "heads",   "kv_heads", "head_dim", "hidden",   "inter", "layers", "vocab",  "tied",
    "qk_norm", "bias",     "window",   "dtype",    "block", "len",    "budget", "rows",
    "workers", "policy",   "pages",    "timeline", "spare", "weights",
    "draft",   "draft_len", "exit_first", "exit_every", "exit_percent",
    "experts", "top", "expert_inter"};

constexpr int kTimelineTasks = 4096;

// Workers of the reference on a GPU: one would be slow.
constexpr int kCudaReferenceWorkers = 8;

std::string ModelKey(const StressCase& c) {
  std::string key;
  for (const char* field : kModelFields) absl::StrAppend(&key, field, "=", c.Get(field), " ");
  return key;
}

ModelConfig ConfigOf(const StressCase& c) {
  ModelConfig config;
  config.qk_norm = c.Get("qk_norm") != 0;
  config.attention_bias = c.Get("bias") != 0;
  config.family = config.qk_norm ? "qwen3" : config.attention_bias ? "qwen2" : "llama";
  config.heads = static_cast<int>(c.Get("heads"));
  config.kv_heads = static_cast<int>(c.Get("kv_heads"));
  config.head_dim = static_cast<int>(c.Get("head_dim"));
  config.hidden = static_cast<int>(c.Get("hidden"));
  config.intermediate = static_cast<int>(c.Get("inter"));
  config.layers = static_cast<int>(c.Get("layers"));
  config.vocab = static_cast<int>(c.Get("vocab"));
  config.max_positions = static_cast<int>(c.Get("len"));
  config.tie_embeddings = c.Get("tied") != 0;
  config.sliding_window = static_cast<int>(c.Get("window"));
  if (config.sliding_window > 0) {
    config.windowed_layers.assign(static_cast<size_t>(std::max(0, config.layers)), true);
  }
  config.dtype = DType::kBF16;
  if (c.Get("experts") > 0) {
    config.family = config.qk_norm ? "qwen3_moe" : config.attention_bias ? "qwen2_moe" : "mixtral";
    config.num_experts = static_cast<int>(c.Get("experts"));
    config.experts_per_token = static_cast<int>(c.Get("top"));
    config.moe_intermediate = static_cast<int>(c.Get("expert_inter"));
    config.norm_topk_prob = !config.attention_bias;
    if (config.attention_bias) config.shared_intermediate = config.intermediate;
    if (config.family == "mixtral") config.intermediate = config.moe_intermediate;
  }
  return config;
}

absl::StatusOr<DType> StorageOf(const StressCase& c, const std::string& device) {
  static constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  const int64_t index = c.Get("dtype", 1);
  if (index < 0 || index > 2 || (index == 0 && device == "cuda")) {
    return absl::InvalidArgumentError("dtype: float32 (cpu, sim), bfloat16 or float16");
  }
  return kTypes[index];
}

absl::StatusOr<RunnerOptions> OptionsOf(const StressCase& c, DType storage) {
  for (const char* field : {"rows", "budget", "len", "block"}) {
    if (c.Get(field) < 1)
      return absl::InvalidArgumentError(absl::StrCat(field, " must be positive"));
  }
  RunnerOptions options;
  options.storage = storage;
  DecoderLimits& limits = options.limits;
  limits.max_rows = static_cast<int>(c.Get("rows"));
  limits.max_tokens = static_cast<int>(c.Get("budget"));
  limits.max_outputs = std::max(limits.max_rows, limits.max_tokens);
  limits.max_model_len = static_cast<int>(c.Get("len"));
  limits.block_size = static_cast<int>(c.Get("block"));
  const int64_t per_row = (limits.max_model_len + limits.block_size - 1) / limits.block_size;
  // Blocks that nobody owns, so that writes beyond one's own show.
  limits.num_blocks = limits.max_rows * per_row + c.Get("spare", 3);
  limits.exit_first = static_cast<int>(c.Get("exit_first"));
  limits.exit_every = static_cast<int>(c.Get("exit_every", 1));
  options.exit_threshold = static_cast<float>(c.Get("exit_percent")) / 100;
  return options;
}

}  // namespace

absl::StatusOr<StressModel*> StressContext::Model(const StressCase& c) {
  std::string key = ModelKey(c);
  if (last_ != nullptr && last_->key == key) return last_.get();
  last_.reset();
  auto model = std::make_unique<StressModel>();
  model->key = std::move(key);
  const ModelConfig config = ConfigOf(c);
  RETURN_IF_ERROR(ValidateConfig(config));
  ASSIGN_OR_RETURN(model->storage, StorageOf(c, device_));
  model->source = RandomWeights(config, static_cast<uint64_t>(c.Get("weights")));
  ASSIGN_OR_RETURN(RunnerOptions options, OptionsOf(c, model->storage));
  const int64_t policy = c.Get("policy");
  options.backend.device = device_;
  options.backend.workers = static_cast<int>(c.Get("workers", 1));
  options.backend.policy = policy == 0 ? "static" : policy == 1 ? "ticket" : "auto";
  options.backend.sim_pages = static_cast<int>(c.Get("pages", 12));
  options.backend.timeline_tasks = c.Get("timeline") != 0 && device_ != "sim" ? kTimelineTasks : 0;
  std::unique_ptr<WeightSource> draft_model;
  if (c.Get("draft") > 0) {
    ModelConfig smaller = config;
    smaller.layers = static_cast<int>(c.Get("draft"));
    smaller.windowed_layers.assign(config.sliding_window > 0 ? static_cast<size_t>(smaller.layers) : 0,
                                   true);
    smaller.max_positions = static_cast<int>(c.Get("draft_len", c.Get("len")));
    RETURN_IF_ERROR(ValidateConfig(smaller));
    draft_model = RandomWeights(smaller, static_cast<uint64_t>(c.Get("weights")));
    options.draft_model = draft_model.get();
    options.draft_storage = model->storage;
  }
  ASSIGN_OR_RETURN(model->tested, MegakernelRunner::Create(*model->source, options));
  options.draft_model = nullptr;
  options.backend = {};
  options.backend.device = device_ == "cuda" ? "cuda" : "cpu";
  options.backend.workers = device_ == "cuda" ? kCudaReferenceWorkers : 1;
  options.backend.policy = "static";
  ASSIGN_OR_RETURN(model->reference, MegakernelRunner::Create(*model->source, options));
  last_ = std::move(model);
  return last_.get();
}

void RandomModel(StressRandom* random, const std::string& device, StressCase* c) {
  struct Heads {
    int64_t heads, kv_heads;
  };
  static constexpr Heads kHeads[] = {{1, 1}, {4, 2}, {7, 1},  {9, 3}, {14, 2},
                                     {4, 4}, {8, 1}, {24, 4}, {64, 1}};
  const Heads heads = kHeads[random->Below(std::size(kHeads))];
  const bool wide = heads.heads > 14;
  c->Set("heads", heads.heads);
  c->Set("kv_heads", heads.kv_heads);
  c->Set("head_dim", wide ? random->OneOf({8, 16}) : random->OneOf({8, 16, 24, 56, 64, 96, 128}));
  c->Set("hidden", random->OneOf({16, 40, 64, 128, 172, 256}));
  c->Set("inter", random->OneOf({16, 33, 96, 128, 200, 352}));
  c->Set("layers", random->Between(1, 3));
  c->Set("vocab", random->Chance(3) ? 40001 : random->OneOf({16, 33, 100, 257, 1000}));
  c->Set("tied", random->Below(2));
  c->Set("qk_norm", random->Below(2));
  c->Set("bias", c->Get("qk_norm") != 0 ? 0 : random->Below(2));
  c->Set("window", random->Chance(30) ? random->OneOf({4, 7, 33}) : 0);
  c->Set("dtype", device == "cuda" ? random->Between(1, 2) : random->Below(3));
  c->Set("block", random->OneOf({1, 4, 16, 32}));
  c->Set("len", random->OneOf({24, 70, 130}));
  c->Set("budget", random->OneOf({8, 33, 64}));
  c->Set("rows", random->Between(1, 6));
  c->Set("workers", device == "cuda"  ? random->OneOf({0, 1, 2, 3, 72})
                    : device == "sim" ? random->OneOf({1, 2, 3, 5})
                                      : random->OneOf({1, 2, 3, 4, 72, 132}));
  c->Set("policy", random->Below(3));
  if (device == "sim") c->Set("pages", random->Between(6, 12));
  if (device != "sim") c->Set("timeline", random->Below(2));
  c->Set("weights", random->Below(1000));
  if (random->Chance(25)) {
    c->Set("experts", random->OneOf({1, 3, 8, 17, 40}));
    c->Set("top", random->Between(1, std::min<int64_t>(6, c->Get("experts"))));
    c->Set("expert_inter", random->OneOf({16, 33, 96}));
  }
  // With all layers a draft model is the model itself, and right wherever that is greedy.
  if (!random->Chance(40)) return;
  c->Set("draft", random->Between(1, c->Get("layers")));
  c->Set("draft_len", random->OneOf({c->Get("len"), c->Get("len"), 17, 1}));
}

std::vector<TokenId> StressTokens(int64_t count, int vocab, uint64_t seed) {
  StressRandom random(seed);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<TokenId>(random.Below(vocab)));
  return tokens;
}

}  // namespace eventide
