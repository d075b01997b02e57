// Whole decoders on the CPU against a plain float64 forward pass, and against themselves: bits may
// depend on neither chunking, batch, workers nor policy.
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "models/load.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "serve/megakernel_runner.h"
#include "stress/reference.h"
#include "tests/support/team_config.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

struct Setup {
  int workers = 2;
  std::string policy = "static";
  std::string device = "cpu";
  DType storage = DType::kF32;
  int max_model_len = 512;
};

std::unique_ptr<MegakernelRunner> MakeRunner(const WeightSource& source, const Setup& setup) {
  RunnerOptions options;
  options.backend.device = setup.device;
  options.backend.workers = setup.workers;
  options.backend.policy = setup.policy;
  options.storage = setup.storage;
  options.limits.max_rows = 8;
  options.limits.max_tokens = 256;
  options.limits.max_outputs = 256;
  options.limits.max_model_len = setup.max_model_len;
  auto runner = MegakernelRunner::Create(source, options);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return std::move(*runner);
}

std::vector<TokenId> SomeTokens(int count, int vocab, uint32_t seed) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<TokenId>((seed >> 8) % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

// Sequences in slots 0, 1, ...; each has blocks of its own, in an order that is not the identity.
class Sequences {
 public:
  Sequences(MegakernelRunner* runner, std::vector<std::vector<TokenId>> sequences)
      : runner_(runner), sequences_(std::move(sequences)), logits_(sequences_.size()) {
    for (uint32_t slot = 0; slot < sequences_.size(); ++slot) {
      SlotAdmission admission;
      admission.slot = slot;
      admission.tokens = sequences_[slot];
      admission.prompt_length = static_cast<uint32_t>(sequences_[slot].size());
      admission.max_length = static_cast<uint32_t>(runner->info().max_model_len);
      REQUIRE(runner->Admit(admission).ok());
      const uint32_t per_slot = static_cast<uint32_t>(runner->info().num_blocks / 8);
      for (uint32_t i = 0; i < per_slot; ++i) blocks_.push_back((per_slot - 1 - i) * 8 + slot);
      at_.push_back(0);
    }
  }
  ~Sequences() {
    for (uint32_t slot = 0; slot < sequences_.size(); ++slot) runner_->Release(slot);
  }

  // One step with `lengths[slot]` tokens of each sequence; 0: not in the step.
  void Step(const std::vector<int>& lengths) {
    std::vector<Row> rows;
    std::vector<BlockTableUpdate> updates;
    const size_t per_slot = blocks_.size() / sequences_.size();
    for (uint32_t slot = 0; slot < lengths.size(); ++slot) {
      if (lengths[slot] == 0) continue;
      rows.push_back({slot, static_cast<uint32_t>(lengths[slot]), 0, kRowAllLogits});
      if (at_[slot] == 0) {
        updates.push_back(
            {slot, 0, std::span<const BlockId>(blocks_).subspan(slot * per_slot, per_slot)});
      }
    }
    const absl::Status submitted = runner_->Submit({steps_++, rows, updates});
    INFO(submitted);
    REQUIRE(submitted.ok());
    const StepOutcome outcome = runner_->Wait();
    INFO(outcome.status);
    REQUIRE(outcome.status.ok());
    int first = 0;
    for (const Row& row : rows) {
      auto logits = runner_->Logits(first, static_cast<int>(row.query_length));
      REQUIRE(logits.ok());
      logits_[row.slot].insert(logits_[row.slot].end(), logits->begin(), logits->end());
      first += static_cast<int>(row.query_length);
      at_[row.slot] += static_cast<int>(row.query_length);
    }
  }

  // All tokens of all sequences, at most `chunk` of each in a step.
  void Run(int chunk) {
    for (;;) {
      std::vector<int> lengths;
      int tokens = 0;
      for (size_t slot = 0; slot < sequences_.size(); ++slot) {
        const int left = static_cast<int>(sequences_[slot].size()) - at_[slot];
        lengths.push_back(std::min({left, chunk, 256 - tokens}));
        tokens += lengths.back();
      }
      if (tokens == 0) return;
      Step(lengths);
    }
  }

  const std::vector<float>& logits(size_t slot) const { return logits_[slot]; }

 private:
  MegakernelRunner* runner_;
  std::vector<std::vector<TokenId>> sequences_;
  std::vector<BlockId> blocks_;
  std::vector<int> at_;
  std::vector<std::vector<float>> logits_;
  uint64_t steps_ = 0;
};

std::vector<float> LogitsOf(MegakernelRunner* runner, const std::vector<TokenId>& tokens,
                            int chunk) {
  Sequences sequences(runner, {tokens});
  sequences.Run(chunk);
  return sequences.logits(0);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

struct Error {
  double max = 0, rms = 0;
  double median = 0;  // over positions, of the RMS of one position's logits
};

// Of logits against float64 on the same stored weights, relative to the RMS of the reference's
// logits.
Error ErrorOf(const WeightSource& source, DType storage, const std::vector<TokenId>& tokens,
              const std::vector<float>& logits) {
  auto reference = Reference<double>::Load(source, storage);
  REQUIRE(reference.ok());
  double sum = 0, scale = 0;
  Error error;
  size_t at = 0;
  std::vector<double> positions;
  for (TokenId token : tokens) {
    const double before = sum;
    for (double expected : reference->Next(token)) {
      const double difference = std::fabs(logits[at++] - expected);
      error.max = std::max(error.max, difference);
      sum += difference * difference;
      scale += expected * expected;
    }
    positions.push_back(sum - before);
  }
  std::nth_element(positions.begin(), positions.begin() + positions.size() / 2, positions.end());
  error.median = std::sqrt(positions[positions.size() / 2] * static_cast<double>(tokens.size()) / scale);
  REQUIRE(at == logits.size());
  error.max /= std::sqrt(scale / static_cast<double>(at));
  error.rms = std::sqrt(sum / scale);
  return error;
}

// Presets differ in what they exercise: test-qwen3 has QK-norms and a tied head, the others experts.
const char* const kPresets[] = {"test-llama", "test-qwen3", "test-moe", "test-mixtral",
                                "test-qwen2-moe", "test-olmoe"};

TEST_CASE("logits in float32 agree with a float64 forward pass to float32's precision") {
  for (const char* preset : kPresets) {
    const auto source = RandomWeights(*PresetConfig(preset), 3);
    const std::vector<TokenId> tokens = SomeTokens(200, source->config().vocab, 5);
    auto runner = MakeRunner(*source, {});
    const Error error = ErrorOf(*source, DType::kF32, tokens, LogitsOf(runner.get(), tokens, 200));
    CAPTURE(preset, error.max, error.rms);
    // Each of the 4 layers rounds a few sums of hundreds of terms: some tens of 2^-24 in RMS.
    CHECK(error.rms < 1e-6);
    CHECK(error.max < 1e-5);
    CHECK(error.rms > 0);
  }
}

TEST_CASE("logits in bfloat16 and float16 are off by the storage type's rounding of activations") {
  for (const char* preset : kPresets) {
    const auto source = RandomWeights(*PresetConfig(preset), 3);
    const std::vector<TokenId> tokens = SomeTokens(150, source->config().vocab, 6);
    for (DType storage : {DType::kBF16, DType::kF16}) {
      Setup setup;
      setup.storage = storage;
      auto runner = MakeRunner(*source, setup);
      const Error error = ErrorOf(*source, storage, tokens, LogitsOf(runner.get(), tokens, 150));
      // Half a unit in the last place: 2^-9 and 2^-12. About five roundings a layer, four layers,
      // add up like independent errors: sqrt(20) / 2 in RMS, and some five times that at worst.
      const double unit = storage == DType::kBF16 ? 0x1p-9 : 0x1p-12;
      CAPTURE(preset, DTypeName(storage), error.max / unit, error.rms / unit, error.median / unit);
      if (source->config().IsMoe()) {
        // Where two experts are nearly equal, rounding may exchange them, and that token's output is then
        // another one. With random weights this is some positions, not most of them.
        CHECK(error.median < 4 * unit);
        CHECK(error.rms < 20 * unit);
        CHECK(error.rms > 0.05 * unit);
        continue;
      }
      CHECK(error.rms < 4 * unit);
      CHECK(error.max < 25 * unit);
      CHECK(error.rms > 0.05 * unit);
    }
  }
}

TEST_CASE("prefill in any chunks gives the same bits") {
  for (const char* preset : kPresets) {
    for (DType storage : {DType::kF32, DType::kBF16}) {
      Setup setup;
      setup.storage = storage;
      const auto source = RandomWeights(*PresetConfig(preset), 1);
      const std::vector<TokenId> tokens = SomeTokens(130, source->config().vocab, 9);
      auto runner = MakeRunner(*source, setup);
      const std::vector<float> whole = LogitsOf(runner.get(), tokens, 130);
      for (int chunk : {1, 7, 16, 33, 64, 100}) {
        CAPTURE(preset, chunk);
        CHECK(SameBits(whole, LogitsOf(runner.get(), tokens, chunk)));
      }
    }
  }
}

TEST_CASE("prefill in any chunks gives the same bits where tasks work in teams") {
  for (DType storage : {DType::kF32, DType::kBF16}) {
    Setup setup;
    setup.storage = storage;
    const auto source = RandomWeights(TeamConfig(), 1);
    const std::vector<TokenId> tokens = SomeTokens(250, source->config().vocab, 9);
    auto runner = MakeRunner(*source, setup);
    const std::vector<float> whole = LogitsOf(runner.get(), tokens, 50);
    for (int chunk : {1, 33, 65, 129, 250}) {
      CAPTURE(chunk);
      CHECK(SameBits(whole, LogitsOf(runner.get(), tokens, chunk)));
    }
  }
}

void CheckCompany(const char* preset) {
  CAPTURE(preset);
  const auto source = RandomWeights(*PresetConfig(preset), 1);
  std::vector<std::vector<TokenId>> sequences;
  for (int i = 0; i < 7; ++i) {
    sequences.push_back(SomeTokens(20 + 31 * i, source->config().vocab, 40u + i));
  }
  std::vector<std::vector<float>> alone;
  {
    auto runner = MakeRunner(*source, {1});
    for (const auto& tokens : sequences) alone.push_back(LogitsOf(runner.get(), tokens, 256));
  }
  for (int workers : {1, 2, 3, 7}) {
    for (const char* policy : {"static", "ticket"}) {
      auto runner = MakeRunner(*source, {workers, policy});
      Sequences batch(runner.get(), sequences);
      batch.Run(workers == 2 ? 1 : 45);
      for (size_t i = 0; i < sequences.size(); ++i) {
        CAPTURE(workers, policy, i);
        CHECK(SameBits(alone[i], batch.logits(i)));
      }
    }
  }
}

TEST_CASE("a sequence has the same bits alone and among others, on any workers and policy") {
  CheckCompany("test-llama");
}

TEST_CASE("so has one whose tokens go to experts") {
  CheckCompany("test-moe");
  CheckCompany("test-qwen2-moe");
}

TEST_CASE("the simulator computes the same bits as threads do") {
  for (const char* preset : {"test-qwen3", "test-moe", "test-qwen2-moe"}) {
    const auto source = RandomWeights(*PresetConfig(preset), 2);
    const std::vector<TokenId> tokens = SomeTokens(20, source->config().vocab, 3);
    auto cpu = MakeRunner(*source, {});
    Setup setup;
    setup.device = "sim";
    setup.workers = 3;
    auto sim = MakeRunner(*source, setup);
    CAPTURE(preset);
    CHECK(SameBits(LogitsOf(cpu.get(), tokens, 12), LogitsOf(sim.get(), tokens, 12)));
  }
}

// Greedy tokens after BOS, through the serving interface: the device's own rows.
std::vector<TokenId> Greedy(MegakernelRunner* runner, TokenId bos, int count) {
  const std::vector<TokenId> prompt = {bos};
  SlotAdmission admission;
  admission.tokens = prompt;
  admission.prompt_length = 1;
  admission.max_length = static_cast<uint32_t>(count + 1);
  REQUIRE(runner->Admit(admission).ok());
  std::vector<BlockId> blocks;
  for (uint32_t i = 0; i * runner->info().block_size < admission.max_length; ++i)
    blocks.push_back(i);
  std::vector<TokenId> tokens;
  for (uint64_t step = 0; step < static_cast<uint64_t>(count); ++step) {
    const Row row{0, step == 0 ? 1 : kDeviceKnows, 0, kRowSample};
    const BlockTableUpdate update{0, 0, blocks};
    std::span<const BlockTableUpdate> updates;
    if (step == 0) updates = {&update, 1};
    REQUIRE(runner->Submit({step, {&row, 1}, updates}).ok());
    const StepOutcome outcome = runner->Wait();
    INFO(outcome.status);
    REQUIRE(outcome.status.ok());
    REQUIRE(outcome.rows[0].tokens.size() == 1);
    tokens.push_back(outcome.rows[0].tokens[0]);
  }
  runner->Release(0);
  return tokens;
}

TEST_CASE("stories260K's greedy tokens are those of float64") {
  const auto model = TestData("models/stories260K.bin");
  const auto golden = TestData("models/stories260K_greedy_ids_fp64.json");
  if (!model || !golden) return Skip("no stories260K in the test data");
  const auto source = OpenModel(*model);
  REQUIRE(source.ok());
  std::ifstream file(*golden);
  const nlohmann::json json = nlohmann::json::parse(file);
  const std::vector<TokenId> ids =
      (json.is_object() ? json.at("ids") : json).get<std::vector<TokenId>>();
  REQUIRE(ids.size() > 100);
  for (DType storage : {DType::kF32}) {
    Setup setup;
    setup.storage = storage;
    auto runner = MakeRunner(**source, setup);
    std::vector<TokenId> tokens = Greedy(runner.get(), 1, static_cast<int>(ids.size()) - 1);
    tokens.insert(tokens.begin(), 1);
    CHECK(tokens == ids);
  }
}

}  // namespace
}  // namespace eventide
