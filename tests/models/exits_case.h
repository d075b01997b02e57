// Early exit of whole decoders on any backend: sequences in steps of the test's choice, their logits, and
// how many layers computed them.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>

#include "models/presets.h"
#include "models/random_weights.h"
#include "serve/megakernel_runner.h"
#include "stress/reference.h"
#include "tests/support/test.h"

namespace eventide {

struct ExitSetup {
  std::string device = "cpu";
  int workers = 2;
  std::string policy = "static";
  DType storage = DType::kF32;
  int first = 1, every = 1;  // first 0: a decoder without exits
  float threshold = 2;
};

inline ModelConfig ExitConfig(const std::string& preset) {
  ModelConfig config = *PresetConfig(preset);
  config.layers = 5;
  return config;
}

inline std::unique_ptr<MegakernelRunner> MakeExitRunner(const WeightSource& source,
                                                        const ExitSetup& setup) {
  RunnerOptions options;
  options.backend.device = setup.device;
  options.backend.workers = setup.workers;
  options.backend.policy = setup.policy;
  options.storage = setup.storage;
  options.limits.max_rows = 8;
  options.limits.max_tokens = 128;
  options.limits.max_outputs = 128;
  options.limits.max_model_len = 160;
  options.limits.exit_first = setup.first;
  options.limits.exit_every = setup.every;
  options.exit_threshold = setup.threshold;
  auto runner = MegakernelRunner::Create(source, options);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return std::move(*runner);
}

inline std::vector<TokenId> ExitTokens(int count, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(random() % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

struct ExitRun {
  std::vector<std::vector<float>> logits;  // of each sequence: of all its tokens
  int64_t layers = 0;                      // of all tokens together
};

// All tokens of the sequences, `chunk(slot)` of each in a step at most.
inline ExitRun RunExits(MegakernelRunner* runner,
                        const std::vector<std::vector<TokenId>>& sequences,
                        const std::function<int(size_t)>& chunk) {
  const RunnerInfo& info = runner->info();
  const uint32_t per_slot = static_cast<uint32_t>(info.num_blocks / info.max_slots);
  std::vector<BlockId> blocks;
  for (uint32_t slot = 0; slot < sequences.size(); ++slot) {
    SlotAdmission admission;
    admission.slot = slot;
    admission.tokens = sequences[slot];
    admission.prompt_length = static_cast<uint32_t>(sequences[slot].size());
    admission.max_length = static_cast<uint32_t>(info.max_model_len);
    REQUIRE(runner->Admit(admission).ok());
    for (uint32_t i = 0; i < per_slot; ++i) {
      blocks.push_back((per_slot - 1 - i) * info.max_slots + slot);
    }
  }
  ExitRun run;
  run.logits.resize(sequences.size());
  std::vector<size_t> at(sequences.size(), 0);
  for (uint64_t step = 0;; ++step) {
    std::vector<Row> rows;
    std::vector<BlockTableUpdate> updates;
    size_t room = info.max_batched_tokens;
    for (uint32_t slot = 0; slot < sequences.size(); ++slot) {
      const size_t length =
          std::min({sequences[slot].size() - at[slot], static_cast<size_t>(chunk(slot)), room});
      if (length == 0) continue;
      room -= length;
      rows.push_back({slot, static_cast<uint32_t>(length), 0, kRowAllLogits});
      if (at[slot] == 0) {
        updates.push_back(
            {slot, 0, std::span<const BlockId>(blocks).subspan(slot * per_slot, per_slot)});
      }
    }
    if (rows.empty()) break;
    const absl::Status submitted = runner->Submit({step, rows, updates});
    INFO(submitted);
    REQUIRE(submitted.ok());
    const StepOutcome outcome = runner->Wait();
    INFO(outcome.status);
    REQUIRE(outcome.status.ok());
    int first = 0;
    for (const Row& row : rows) {
      const auto logits = runner->Logits(first, static_cast<int>(row.query_length));
      REQUIRE(logits.ok());
      std::vector<float>& all = run.logits[row.slot];
      all.insert(all.end(), logits->begin(), logits->end());
      first += static_cast<int>(row.query_length);
      at[row.slot] += row.query_length;
    }
    if (!runner->decoder().HasExits()) continue;
    const auto tokens = runner->TokensOfLayers();
    REQUIRE(tokens.ok());
    for (int count : *tokens) run.layers += count;
  }
  for (uint32_t slot = 0; slot < sequences.size(); ++slot) runner->Release(slot);
  return run;
}

inline bool SameLogits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Without anybody who leaves, an exit decoder's bits are those of the plain one.
inline void CheckNobodyLeaves(const ExitSetup& setup, const std::string& preset) {
  const auto source = RandomWeights(ExitConfig(preset), 1);
  const std::vector<std::vector<TokenId>> sequences = {
      ExitTokens(90, source->config().vocab, 1), ExitTokens(37, source->config().vocab, 2)};
  ExitSetup plain = setup;
  plain.first = 0;
  auto without = MakeExitRunner(*source, plain), with = MakeExitRunner(*source, setup);
  const auto chunk = [](size_t slot) { return slot == 0 ? 33 : 1; };
  const ExitRun expected = RunExits(without.get(), sequences, chunk);
  const ExitRun got = RunExits(with.get(), sequences, chunk);
  CAPTURE(preset, setup.first, setup.every);
  for (size_t i = 0; i < sequences.size(); ++i) {
    CHECK(SameLogits(expected.logits[i], got.logits[i]));
  }
  CHECK(got.layers == (90 + 37) * source->config().layers);
}

// Everybody leaves behind `layer` layers: the logits of a decoder that ends there.
inline void CheckEverybodyLeaves(const ExitSetup& setup, const std::string& preset, int layer) {
  const auto source = RandomWeights(ExitConfig(preset), 1);
  const std::vector<TokenId> tokens = ExitTokens(60, source->config().vocab, 7);
  auto runner = MakeExitRunner(*source, setup);
  std::vector<float> thresholds(static_cast<size_t>(source->config().layers), 2.0f);
  thresholds[static_cast<size_t>(layer - 1)] = -2.0f;
  REQUIRE(runner->SetExitThresholds(thresholds).ok());
  const ExitRun whole = RunExits(runner.get(), {tokens}, [](size_t) { return 60; });
  const ExitRun single = RunExits(runner.get(), {tokens}, [](size_t) { return 1; });
  CAPTURE(preset, layer);
  CHECK(SameLogits(whole.logits[0], single.logits[0]));
  CHECK(whole.layers == int64_t{60} * layer);
  CHECK(single.layers == int64_t{60} * layer);
  ModelConfig shallow = source->config();
  shallow.layers = layer;
  const auto cut = RandomWeights(shallow, 1);
  ExitSetup plain = setup;
  plain.first = 0;
  auto short_runner = MakeExitRunner(*cut, plain);
  const ExitRun expected = RunExits(short_runner.get(), {tokens}, [](size_t) { return 13; });
  CHECK(SameLogits(whole.logits[0], expected.logits[0]));
}

// A threshold some of the tokens reach: each leaves or stays for its own sake.
inline void CheckSomeLeave(const ExitSetup& setup, const std::string& preset) {
  const auto source = RandomWeights(ExitConfig(preset), 1);
  std::vector<std::vector<TokenId>> sequences;
  int64_t all = 0;
  for (int i = 0; i < 6; ++i) {
    sequences.push_back(ExitTokens(9 + 17 * i, source->config().vocab, 40u + static_cast<uint32_t>(i)));
    all += static_cast<int64_t>(sequences.back().size());
  }
  auto runner = MakeExitRunner(*source, setup);
  std::vector<std::vector<float>> alone;
  int64_t layers = 0;
  for (const auto& tokens : sequences) {
    const ExitRun run = RunExits(runner.get(), {tokens}, [](size_t) { return 1; });
    alone.push_back(run.logits[0]);
    layers += run.layers;
  }
  CAPTURE(preset, setup.threshold, layers, all);
  // One token a row: whoever is decided leaves. Many do, and not all at the first point.
  CHECK(layers < all * source->config().layers - all / 8);
  CHECK(layers > all * setup.first + all / 8);
  for (const int chunk : {1, 3, 40}) {
    CAPTURE(chunk);
    const ExitRun run = RunExits(runner.get(), sequences, [&](size_t slot) {
      return slot % 2 == 0 ? 1 : chunk;
    });
    for (size_t i = 0; i < sequences.size(); ++i) CHECK(SameLogits(alone[i], run.logits[i]));
    // Decided tokens of long rows are computed on until the row leaves.
    CHECK(run.layers >= layers);
    if (chunk == 1) CHECK(run.layers == layers);
  }
}

}  // namespace eventide
