// Early exit on the CPU and in the simulator: nobody, everybody and some leave; against a decoder that is
// shorter, against float64, alone and in company.
#include "tests/models/exits_case.h"

#include "models/decoder_parts.h"

namespace eventide {
namespace {

// A cosine that many of a random model's states reach, at one layer or another.
constexpr float kSome = 0.75f;

TEST_CASE("with nobody who leaves, early exit has the plain decoder's bits") {
  for (const char* preset : {"test-llama", "test-qwen3", "test-llama-14-2", "test-moe", "test-qwen2-moe"}) {
    CheckNobodyLeaves({}, preset);
    ExitSetup bf16;
    bf16.storage = DType::kBF16;
    bf16.first = 2;
    bf16.every = 2;
    CheckNobodyLeaves(bf16, preset);
  }
}

TEST_CASE("with everybody leaving at a point, logits are those of a decoder that ends there") {
  for (const char* preset : {"test-llama", "test-qwen3", "test-moe", "test-qwen2-moe"}) {
    for (int layer = 1; layer < 5; ++layer) CheckEverybodyLeaves({}, preset, layer);
  }
}

TEST_CASE("who leaves is a matter of each token, whatever it is computed with") {
  for (const char* preset : {"test-llama", "test-qwen3", "test-moe", "test-qwen2-moe"}) {
    for (const DType storage : {DType::kF32, DType::kBF16}) {
      ExitSetup setup;
      setup.storage = storage;
      setup.threshold = kSome;
      CheckSomeLeave(setup, preset);
      setup.first = 2;
      setup.every = 2;
      setup.threshold = 0.5f;  // two layers turn a state further
      setup.policy = "ticket";
      setup.workers = 3;
      CheckSomeLeave(setup, preset);
    }
  }
}

TEST_CASE("tables are not taken for layers' where there are as many of one as of the other") {
  // Depths from two on, with the last point behind all but one layer: some of the step's tables have as many
  // elements.
  for (int layers = 2; layers <= 9; ++layers) {
    ModelConfig config = ExitConfig("test-llama");
    config.layers = layers;
    const auto source = RandomWeights(config, 1);
    std::vector<std::vector<TokenId>> sequences;
    for (uint32_t i = 0; i < 8; ++i) sequences.push_back(ExitTokens(3, config.vocab, i));
    ExitSetup setup;
    setup.first = layers - 1;
    for (const float threshold : {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f}) {
      setup.threshold = threshold;
      auto runner = MakeExitRunner(*source, setup);
      const ExitRun together = RunExits(runner.get(), sequences, [](size_t) { return 1; });
      CAPTURE(layers, threshold, together.layers);
      for (size_t i = 0; i < sequences.size(); ++i) {
        const ExitRun alone = RunExits(runner.get(), {sequences[i]}, [](size_t) { return 1; });
        CHECK(SameLogits(alone.logits[0], together.logits[i]));
      }
    }
  }
}

void CheckSimulator(const std::string& preset) {
  const auto source = RandomWeights(ExitConfig(preset), 1);
  const std::vector<std::vector<TokenId>> sequences = {
      ExitTokens(21, source->config().vocab, 1), ExitTokens(9, source->config().vocab, 2),
      ExitTokens(9, source->config().vocab, 3)};
  const auto chunk = [](size_t slot) { return slot == 0 ? 4 : 1; };
  ExitSetup setup;
  setup.threshold = kSome;
  const ExitRun cpu = RunExits(MakeExitRunner(*source, setup).get(), sequences, chunk);
  setup.device = "sim";
  for (const char* policy : {"static", "ticket"}) {
    setup.policy = policy;
    const ExitRun sim = RunExits(MakeExitRunner(*source, setup).get(), sequences, chunk);
    CAPTURE(preset, policy);
    for (size_t i = 0; i < sequences.size(); ++i) CHECK(SameLogits(cpu.logits[i], sim.logits[i]));
    CHECK(sim.layers == cpu.layers);
  }
}

TEST_CASE("early exit in the simulator has the CPU's bits") {
  CheckSimulator("test-llama");
  CheckSimulator("test-qwen2-moe");
}

TEST_CASE("early exit is what a float64 forward pass with the same rule computes") {
  for (const char* preset : {"test-llama", "test-qwen3", "test-llama-9-3", "test-moe", "test-qwen2-moe"}) {
    for (const int every : {1, 2}) {
      const auto source = RandomWeights(ExitConfig(preset), 3);
      const std::vector<TokenId> tokens = ExitTokens(100, source->config().vocab, 5);
      ExitSetup setup;
      setup.threshold = every == 1 ? kSome : 0.5f;
      setup.every = every;
      auto runner = MakeExitRunner(*source, setup);
      const ExitRun run = RunExits(runner.get(), {tokens}, [](size_t) { return 1; });
      auto reference = Reference<double>::Load(*source, DType::kF32);
      REQUIRE(reference.ok());
      reference->SetExits({1, every, double{setup.threshold}});
      double sum = 0, scale = 0, margin = 1;
      int64_t layers = 0;
      size_t at = 0;
      for (const TokenId token : tokens) {
        for (const double expected : reference->Next(token)) {
          const double difference = run.logits[0][at++] - expected;
          sum += difference * difference;
          scale += expected * expected;
        }
        layers += reference->layers_of_last();
        margin = std::min(margin, reference->margin_of_last());
      }
      CAPTURE(preset, every, margin, layers);
      // Float32 decides as float64 does where no cosine is as near to the threshold as its rounding.
      REQUIRE(margin > 1e-6);
      CHECK(run.layers == layers);
      CHECK(layers < 100 * source->config().layers);
      // As without early exit (decoder_cpu_test.cc).
      CHECK(std::sqrt(sum / scale) < 1e-6);
    }
  }
}

TEST_CASE("a decoder with early exit is refused where its parts do not know of it") {
  DecoderLimits limits;
  limits.num_blocks = 1;
  limits.exit_first = 1;
  CHECK(BuildDecoder(*PresetConfig("test-olmoe"), DType::kF32, limits).status().message().find(
            "norm queries and keys over all heads (OLMoE) is not supported") != absl::string_view::npos);
  limits.exit_first = 4;  // test-llama has 4 layers
  CHECK(BuildDecoder(*PresetConfig("test-llama"), DType::kF32, limits).status().message().find(
            "the number of layers before tokens may leave is 4") != absl::string_view::npos);
}

TEST_CASE("the lines of the counts are those of the last point before a layer") {
  for (const ExitPoints points : {ExitPoints{1, 1, 4}, {3, 1, 4}, {2, 3, 5}, {1, 2, 5}, {4, 4, 8}}) {
    int start = 0;
    for (int layer = 0; layer <= 9; ++layer) {
      if (points.InFrontOf(layer)) start = layer;
      CAPTURE(points.first, points.every, layer);
      CHECK(ExitStart(points, Expr(layer)).AsConstant() == start);
      int next = layer + 1;
      while (next < 10 && !points.InFrontOf(next)) ++next;
      CHECK(points.Next(layer, 10) == next);
    }
  }
}

}  // namespace
}  // namespace eventide
