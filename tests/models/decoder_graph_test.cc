#include "core/dump.h"
#include "core/program.h"
#include "core/verify.h"
#include "models/decoder.h"
#include "models/presets.h"
#include "tests/support/team_config.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

DecoderLimits SmallLimits() {
  DecoderLimits limits;
  limits.max_rows = 5;
  limits.max_tokens = 70;
  limits.max_outputs = 40;
  limits.num_blocks = 16;
  return limits;
}

void CheckVerifies(ModelConfig config, const DecoderLimits& limits) {
  auto decoder = BuildDecoder(config, config.dtype, limits);
  INFO(decoder.status());
  REQUIRE(decoder.ok());
  VerifyOptions options = DecoderVerifyOptions(*decoder);
  options.pool_pages = 12;
  std::vector<std::string> notes;
  options.notes = &notes;
  const absl::Status status = Verify(decoder->graph, options);
  INFO(status);
  for (const std::string& note : notes) UNSCOPED_INFO(note);
  CHECK(status.ok());
  const auto program = Lower(decoder->graph);
  INFO(program.status());
  CHECK(program.ok());
}

TEST_CASE("the decoder graph of every preset verifies with small limits") {
  for (const std::string& name : PresetNames()) {
    auto config = PresetConfig(name);
    REQUIRE(config.ok());
    INFO(name);
    // Layers are alike: two show every edge between them.
    config->layers = std::min(config->layers, 2);
    config->intermediate = std::min(config->intermediate, 512);
    config->num_experts = std::min(config->num_experts, 16);
    config->moe_intermediate = std::min(config->moe_intermediate, 96);
    config->vocab = std::min(config->vocab, 300);
    config->hidden = std::min(config->hidden, 192);
    config->bos = -1;
    config->eos = {};
    CheckVerifies(*config, SmallLimits());
  }
}

TEST_CASE("the decoder graph verifies for shapes that are multiples of no tile") {
  ModelConfig config = *PresetConfig("test-llama");
  config.hidden = 172;
  config.heads = 7;
  config.kv_heads = 1;
  config.head_dim = 56;
  config.intermediate = 333;
  config.vocab = 257;
  config.layers = 3;
  CheckVerifies(config, SmallLimits());
}

TEST_CASE("linears work in teams where all of a layer's can, and their tiles of tokens are that much larger") {
  const auto tile = [](const ModelConfig& config) {
    const auto decoder = BuildDecoder(config, DType::kBF16, SmallLimits());
    REQUIRE(decoder.ok());
    const std::string text = DumpText(decoder->graph);
    return text.find("event x_ready [3, ceil(tokens / 256)]") != std::string::npos   ? 256
           : text.find("event x_ready [3, ceil(tokens / 64)]") != std::string::npos ? 64
                                                                                     : 0;
  };
  ModelConfig config = TeamConfig();
  CHECK(tile(config) == 256);
  CheckVerifies(config, SmallLimits());
  config.hidden = 288;  // 18 tiles
  CHECK(tile(config) == 64);
  config = TeamConfig();
  config.kv_heads = 8;  // 6 tiles a KV head
  CHECK(tile(config) == 64);
}

TEST_CASE("the decoder graph verifies with early exit, dense or with experts") {
  for (const char* preset : {"test-llama", "test-qwen3", "test-moe", "test-qwen2-moe"}) {
    ModelConfig config = *PresetConfig(preset);
    for (const int every : {1, 2}) {
      INFO(preset << ", every " << every);
      config.layers = 2 + every;
      DecoderLimits limits = SmallLimits();
      limits.exit_first = 1;
      limits.exit_every = every;
      CheckVerifies(config, limits);
    }
  }
}

void CheckEveryEdgeOfExits(const std::string& preset, int least) {
  ModelConfig config = *PresetConfig(preset);
  config.layers = 3;
  DecoderLimits limits = SmallLimits();
  limits.max_tokens = 20;
  limits.exit_first = 1;
  const auto decoder = BuildDecoder(config, config.dtype, limits);
  REQUIRE(decoder.ok());
  const VerifyOptions options = DecoderVerifyOptions(*decoder);
  const auto program = Lower(decoder->graph, options);
  INFO(program.status());
  REQUIRE(program.ok());
  REQUIRE(VerifyTasks(decoder->graph, *program, options).ok());
  int taken = 0;
  for (size_t g = 0; g < program->grids.size(); ++g) {
    if (program->grids[g].is_gate) continue;
    for (auto edges : {&ProgramGrid::waits, &ProgramGrid::notifies, &ProgramGrid::extent_publications}) {
      for (size_t i = 0; i < (program->grids[g].*edges).size(); ++i) {
        // What `route` publishes; others' extents have been waited for by those before them.
        const std::string& event = program->events[(program->grids[g].*edges)[i].event].name;
        if (edges == &ProgramGrid::extent_publications && (program->grids[g].name != "gate_up" || event != "routed")) {
          continue;
        }
        Program damaged = *program;
        auto& list = damaged.grids[g].*edges;
        list.erase(list.begin() + static_cast<long>(i));
        const absl::Status status = VerifyTasks(decoder->graph, damaged, options);
        INFO(preset << ", " << program->grids[g].name << ", " << event << ", edge " << i << ": " << status);
        CHECK_FALSE(status.ok());
        ++taken;
      }
    }
  }
  CHECK(taken >= least);
}

TEST_CASE("a decoder with early exit without any one of its edges is refused") {
  CheckEveryEdgeOfExits("test-llama", 30);
}

TEST_CASE("a mixture of experts with early exit without any one of its edges is refused") {
  CheckEveryEdgeOfExits("test-moe", 35);
  CheckEveryEdgeOfExits("test-qwen2-moe", 40);
}

// Takes an edge out of the lowered program: nothing else orders what it orders.
TEST_CASE("a mixture of experts without any one of its edges is refused") {
  for (const char* preset : {"test-moe", "test-qwen2-moe"}) {
    ModelConfig config = *PresetConfig(preset);
    config.layers = 2;
    DecoderLimits limits = SmallLimits();
    limits.max_tokens = 70;  // enough for a row of many
    const auto decoder = BuildDecoder(config, config.dtype, limits);
    REQUIRE(decoder.ok());
    const VerifyOptions options = DecoderVerifyOptions(*decoder);
    const auto program = Lower(decoder->graph, options);
    REQUIRE(program.ok());
    REQUIRE(VerifyTasks(decoder->graph, *program, options).ok());
    int taken = 0;
    for (size_t g = 0; g < program->grids.size(); ++g) {
      if (program->grids[g].is_gate || program->sections[program->grids[g].section].layers == 1)
        continue;
      for (auto edges : {&ProgramGrid::waits, &ProgramGrid::notifies,
                         &ProgramGrid::extent_publications}) {
        for (size_t i = 0; i < (program->grids[g].*edges).size(); ++i) {
          if (edges == &ProgramGrid::extent_publications &&
              program->grids[g].name != "gate_up") {
            continue;  // attention, and down behind gate_up: waited for by those before them
          }
          Program damaged = *program;
          auto& list = damaged.grids[g].*edges;
          list.erase(list.begin() + static_cast<long>(i));
          const absl::Status status = VerifyTasks(decoder->graph, damaged, options);
          INFO(preset << ", " << program->grids[g].name << ", edge " << i << ": " << status);
          CHECK_FALSE(status.ok());
          ++taken;
        }
      }
    }
    CHECK(taken >= 15);
  }
}

TEST_CASE("experts with biases and mixed windows are refused by name") {
  ModelConfig moe = *PresetConfig("test-llama");
  moe.family = "mixtral";
  moe.num_experts = 8;
  moe.experts_per_token = 2;
  moe.moe_intermediate = 64;
  moe.mlp_bias = true;
  const auto refused = BuildDecoder(moe, DType::kF32, SmallLimits());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message().find("mlp_bias") != absl::string_view::npos);

  ModelConfig mixed = *PresetConfig("test-llama");
  mixed.family = "qwen2";
  mixed.sliding_window = 64;
  mixed.windowed_layers = {false, true, true, true};
  const auto windows = BuildDecoder(mixed, DType::kF32, SmallLimits());
  REQUIRE_FALSE(windows.ok());
  CHECK(windows.status().message().find("sliding window") != absl::string_view::npos);
}

TEST_CASE("limits out of range are refused by the name of their flag") {
  const ModelConfig config = *PresetConfig("test-llama");
  DecoderLimits limits = SmallLimits();
  limits.block_size = 24;
  auto refused = BuildDecoder(config, DType::kF32, limits);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message().find("block-size") != absl::string_view::npos);
  limits = SmallLimits();
  limits.max_model_len = 1 << 20;
  refused = BuildDecoder(config, DType::kF32, limits);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message().find("max-model-len") != absl::string_view::npos);
}

TEST_CASE("the table of rotations is the same whatever number of threads makes it") {
  const ModelConfig config = *PresetConfig("llama-3.2-1b");
  DecoderLimits limits = SmallLimits();
  limits.max_model_len = 1501;
  const auto decoder = BuildDecoder(config, DType::kBF16, limits);
  REQUIRE(decoder.ok());
  const std::vector<float> one = RopeTensor(*decoder);
  REQUIRE(one.size() == size_t{1501} * config.head_dim);
  CHECK(one.back() != 0);
  for (const int threads : {2, 5, 64}) CHECK(RopeTensor(*decoder, threads) == one);
}

}  // namespace
}  // namespace eventide
