// Many schedules of a decoder's steps with the real ops in the simulator, each compared bit by bit
// with what one CPU worker made of the same step: logits, tokens, slots, histories, KV cache.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/step_tables.h"
#include "runtime/sim_executor.h"
#include "tests/support/decoder_rig.h"
#include "tests/support/sim_campaign.h"

namespace eventide {

struct DecoderCampaignResult : CampaignResult {
  int64_t split = 0;  // schedules with attention tiles that several tasks shared
};

struct DecoderSetting {
  int workers = 3;
  int pages = 12;
  std::string policy = "static";
  SimControls controls;
};

// `schedules` seeds, the recorded steps in turn. `program` is the model's, or one with a fault.
inline void RunDecoderSetting(DecoderModel* model, const Program& program,
                              const std::vector<RecordedStep>& steps, const DecoderSetting& setting,
                              uint64_t first_seed, int schedules, DecoderCampaignResult* result) {
  SimExecutorOptions options;
  options.workers = setting.workers;
  options.pages = setting.pages;
  options.policy = setting.policy;
  options.controls = setting.controls;
  options.placed = model->Placed();
  auto sim = MakeSimExecutor(program, options);
  if (!sim.ok()) {
    ++result->refused;
    if (result->first.empty()) result->first = sim.status().ToString();
    return;
  }
  DecoderRig rig(model->decoder(), &(*sim)->executor());
  for (int i = 0; i < schedules; ++i) {
    const RecordedStep& step = steps[static_cast<size_t>(i) % steps.size()];
    const uint64_t seed = first_seed + static_cast<uint64_t>(i);
    rig.Put(step.before);
    rig.Poison();
    (*sim)->SetSeed(seed);
    DecoderOutputs outputs;
    const absl::Status status = rig.Step(step.rows, &outputs);
    ++result->schedules;
    result->switches += static_cast<int64_t>((*sim)->trace().switches);
    int32_t counts[kStepCounts] = {};
    Executor& executor = (*sim)->executor();
    EVT_CHECK(
        executor.Read(executor.TensorBuffer(model->decoder().counts), 0, counts, sizeof(counts))
            .ok());
    result->split += counts[kCountGroups] > 0;
    std::string what;
    if (absl::IsDeadlineExceeded(status)) {
      ++result->deadlocks;
      what = std::string(status.message());
    } else if (!status.ok()) {
      ++result->other_errors;
      what = std::string(status.message());
    } else if (!(outputs == step.outputs)) {
      ++result->wrong_values;
      what = "wrong logits or tokens";
    } else if (!(rig.Get() == step.after)) {
      ++result->wrong_values;
      what = "wrong slots, history or KV cache";
    }
    if (!what.empty() && result->first.empty()) {
      result->first = absl::StrCat(program.name, ", step ", step.name, ", workers ",
                                   setting.workers, ", pages ", setting.pages, ", ", setting.policy,
                                   ", seed ", seed, ": ", what);
    }
  }
}

struct DecoderVariant {
  const char* preset;
  int layers;
  DType storage;
  bool exits = false;  // behind every layer
};

inline const std::vector<DecoderVariant>& DecoderVariants() {
  static const std::vector<DecoderVariant> variants = {{"test-llama", 1, DType::kF32},
                                                       {"test-llama", 2, DType::kBF16},
                                                       {"test-qwen3", 2, DType::kF32},
                                                       {"test-moe", 2, DType::kF32},
                                                       {"test-qwen2-moe", 1, DType::kBF16},
                                                       {"test-llama", 4, DType::kF32, true},
                                                       {"test-qwen2-moe", 3, DType::kF32, true}};
  return variants;
}

inline std::unique_ptr<DecoderModel> MakeDecoderModel(const DecoderVariant& variant) {
  ModelConfig config = *PresetConfig(variant.preset);
  config.layers = variant.layers;
  // Fewer tasks of each kind, not fewer kinds.
  config.intermediate = std::min(config.intermediate, 128);
  config.vocab = 100;
  config.bos = config.eos[0] = 1;
  DecoderLimits limits;
  limits.max_rows = 3;
  limits.max_tokens = 64;
  limits.max_outputs = 8;
  limits.part_tokens = 64;
  limits.long_tokens = 6;
  limits.max_model_len = 320;
  limits.num_blocks = 3 * 320 / limits.block_size;
  limits.exit_first = variant.exits ? 1 : 0;
  return std::make_unique<DecoderModel>(config, variant.storage, limits);
}

// `schedules` of each variant, `per_setting` with equal workers, pages and policy, chosen at
// random. Pages begin at the floors: with five pages nothing is left to borrow.
inline DecoderCampaignResult RunDecoderCampaign(uint64_t seed, int schedules, int per_setting,
                                                const SimControls& controls = {}) {
  DecoderCampaignResult result;
  RuntimeRandom random(seed);
  for (const DecoderVariant& variant : DecoderVariants()) {
    const auto model = MakeDecoderModel(variant);
    const std::vector<RecordedStep> steps = RecordSteps(model.get(), 290);
    for (int done = 0; done < schedules; done += per_setting) {
      DecoderSetting setting;
      setting.workers = 1 + random.Below(5);
      setting.pages = 5 + random.Below(8);
      setting.policy = Schedulers()[static_cast<size_t>(random.Below(3))].name;
      setting.controls = controls;
      RunDecoderSetting(model.get(), model->program(), steps, setting,
                        seed * 1'000'003 + static_cast<uint64_t>(done),
                        std::min(per_setting, schedules - done), &result);
    }
  }
  return result;
}

}  // namespace eventide
