// Random lives of three sequences on the simulator: prefill in chunks, decode with drafts of the device's
// own or forced ones that are right, wrong, or wrong from some place on, rows left out of steps, in any
// order. After every step each sequence's tokens and KV must be those of a run without drafts.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/sim_executor.h"
#include "schedulers/scheduler.h"
#include "tests/support/decoder_rig.h"

namespace eventide {

struct DraftCampaignResult {
  int64_t histories = 0, steps = 0, drafted = 0, accepted = 0, rejected_rows = 0, ended_early = 0;
  int64_t failures = 0;
  std::string first;  // the first failure
};

// The smallest decoder with everything in it; blocks of four tokens, so that rejected drafts cross their
// boundaries all the time.
inline std::unique_ptr<DecoderModel> MakeDraftModel(int window, bool qk_norm) {
  ModelConfig config = *PresetConfig(qk_norm ? "test-qwen3" : "test-llama");
  config.hidden = 32;
  config.intermediate = 32;
  config.layers = 1;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.vocab = 40;
  config.bos = config.eos[0] = 1;
  config.sliding_window = window;
  config.windowed_layers.assign(window > 0 ? 1 : 0, true);
  DecoderLimits limits;
  limits.max_rows = 3;
  limits.max_tokens = 64;
  limits.max_outputs = 51;
  limits.max_model_len = 48;
  limits.block_size = 4;
  limits.num_blocks = 3 * 48 / 4;
  return std::make_unique<DecoderModel>(config, DType::kF32, limits);
}

class DraftHistories {
 public:
  static constexpr int kShared = 8;  // tokens of slot 1 whose KV lies in slot 0's blocks

  DraftHistories(DecoderModel* model, const SimExecutorOptions& options)
      : model_(*model), block_(model->decoder().limits.block_size) {
    CpuExecutorOptions cpu;
    cpu.workers = 1;
    cpu.placed = model->Placed();
    auto plain = MakeCpuExecutor(model->program(), cpu);
    EVT_CHECK(plain.ok());
    plain_ = *std::move(plain);
    plain_rig_ = std::make_unique<DecoderRig>(model->decoder(), plain_.get());
    SimExecutorOptions sim = options;
    sim.placed = model->Placed();
    auto made = MakeSimExecutor(model->program(), sim);
    EVT_CHECK(made.ok());
    sim_ = *std::move(made);
    rig_ = std::make_unique<DecoderRig>(model->decoder(), &sim_->executor());
    for (DecoderRig* rig : {plain_rig_.get(), rig_.get()}) rig->ShareBlocks(0, 1, kShared / block_);
  }

  // `count` histories of the same three sequences.
  void Run(uint64_t seed, int count, DraftCampaignResult* result) {
    random_.seed(seed);
    const DecoderState start = Start();
    const DecoderState truth = Plain(start);
    for (int i = 0; i < count; ++i) {
      ++result->histories;
      const std::string what = Live(start, truth, seed * 1000 + static_cast<uint64_t>(i), result);
      if (what.empty()) continue;
      if (++result->failures == 1) {
        result->first = absl::StrCat("seed ", seed, ", history ", i, ": ", what);
      }
    }
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  // Prompts over few tokens, so that the device finds drafts; slot 1 begins like slot 0 and is admitted
  // with that much cached.
  DecoderState Start() {
    std::vector<std::vector<int32_t>> prompts(3);
    for (auto& prompt : prompts) {
      const int length = kShared + 1 + Below(10);
      for (int i = 0; i < length; ++i) prompt.push_back(2 + Below(3));
    }
    std::copy_n(prompts[0].begin(), kShared, prompts[1].begin());
    DecoderState state = rig_->Fresh(prompts);
    for (SlotState& slot : state.slots) {
      slot.draft_limit = static_cast<u16>(Below(kMaxDraftTokens + 1));
      if (Below(2) == 0) slot.draft_length = slot.draft_limit;
      slot.max_length = static_cast<u32>(std::min<u32>(48, slot.prompt_length + 3 + Below(18)));
      slot.temperature = Below(2) ? 0.0f : 1.0f;
      slot.top_p = Below(2) ? 1.0f : 0.9f;
      slot.key = random_();
      if (Below(3) == 0) {
        slot.stop_count = 1;
        slot.stop_tokens[0] = Below(40);
        slot.min_length = slot.prompt_length + static_cast<u32>(Below(8));
      }
    }
    state.slots[1].context_length = kShared;
    return state;
  }

  static bool Ended(const DecoderState& state) {
    return std::all_of(state.slots.begin(), state.slots.end(),
                       [](const SlotState& s) { return s.finish != kSlotRunning; });
  }
  static u32 Unknown(const SlotState& slot) { return slot.history_length - slot.context_length; }

  // Token by token, without drafts, on one CPU worker.
  DecoderState Plain(DecoderState state) {
    for (SlotState& slot : state.slots) slot.draft_limit = 0;
    plain_rig_->Put(state);
    DecoderOutputs outputs;
    std::vector<Row> rows;
    // Slot 0 first: it fills the blocks that slot 1 shares.
    EVT_CHECK(plain_rig_->Step({Row{0, Unknown(state.slots[0]), 0, kRowSample}}, &outputs).ok());
    for (u32 s = 1; s < 3; ++s) rows.push_back({s, Unknown(state.slots[s]), 0, kRowSample});
    EVT_CHECK(plain_rig_->Step(rows, &outputs).ok());
    for (u32 s = 0; s < 3; ++s) {
      while (plain_rig_->Get().slots[s].finish == kSlotRunning) {
        EVT_CHECK(plain_rig_->Step({Row{s, kDeviceKnows, 0, kRowSample}}, &outputs).ok());
      }
    }
    return plain_rig_->Get();
  }

  std::string Live(DecoderState state, const DecoderState& truth, uint64_t seed,
                   DraftCampaignResult* result) {
    sim_->SetSeed(seed);
    for (int step = 0; !Ended(state); ++step) {
      const std::vector<Row> rows = NextRows(&state, truth);
      if (rows.empty()) continue;
      rig_->Put(state);
      rig_->Poison();
      DecoderOutputs outputs;
      const absl::Status status = rig_->Step(rows, &outputs);
      if (!status.ok()) return absl::StrCat("step ", step, ": ", status.ToString());
      ++result->steps;
      const DecoderState before = std::move(state);
      state = rig_->Get();
      for (size_t r = 0; r < rows.size(); ++r) {
        const StepResult& done = outputs.results[r];
        if (rows[r].query_length == kDeviceKnows && done.query_length > 0) {
          result->drafted += done.query_length - 1;
          result->accepted += done.accepted;
          result->rejected_rows += done.accepted + 1 < done.query_length;
          result->ended_early += done.finish != kSlotRunning && done.accepted == done.count;
        }
        const std::string what = CheckResult(rows[r], done, before, state);
        if (!what.empty()) return absl::StrCat("step ", step, ", row ", r, ": ", what);
      }
      for (u32 s = 0; s < 3; ++s) {
        const std::string what = CheckSlot(s, state, truth);
        if (!what.empty()) return absl::StrCat("step ", step, ", slot ", s, ": ", what);
      }
    }
    for (u32 s = 0; s < 3; ++s) {
      if (state.slots[s].history_length != truth.slots[s].history_length ||
          state.slots[s].finish != truth.slots[s].finish) {
        return absl::StrCat("slot ", s, " ended elsewhere");
      }
    }
    return "";
  }

  // Rows of the next step, in any order; forces drafts on some of them.
  std::vector<Row> NextRows(DecoderState* state, const DecoderState& truth) {
    std::vector<Row> rows;
    for (u32 s = 0; s < 3; ++s) {
      SlotState& slot = state->slots[s];
      if (Below(5) == 0) continue;
      if (slot.context_length + 1 < slot.history_length || slot.history_length == slot.prompt_length) {
        // Slot 1's cached tokens are there when slot 0 has gone over them.
        if (s == 1 && state->slots[0].context_length < kShared) continue;
        const u32 left = Unknown(slot), chunk = 1 + static_cast<u32>(Below(static_cast<int>(left)));
        rows.push_back({s, chunk, 0, chunk == left ? u32{kRowSample} : u32{kRowNone}});
        continue;
      }
      if (slot.finish == kSlotRunning && Below(4) != 0) Force(s, state, truth);
      const u32 allowed = static_cast<u32>(Below(3) ? kMaxDraftTokens : Below(kMaxDraftTokens + 1));
      rows.push_back({s, kDeviceKnows, allowed, kRowSample});
    }
    std::shuffle(rows.begin(), rows.end(), random_);
    return rows;
  }

  // Right drafts up to some place, then a wrong one, then right ones again.
  void Force(u32 s, DecoderState* state, const DecoderState& truth) {
    SlotState& slot = state->slots[s];
    const int most = static_cast<int>(
        std::min<u32>(kMaxDraftTokens, slot.max_length - 1 - slot.history_length));
    const int count = Below(most + 1), wrong = Below(count + 1);
    const size_t at = size_t{s} * 48 + slot.history_length;
    for (int i = 0; i < count; ++i) {
      const size_t to = at + static_cast<size_t>(i);
      // Behind the end of the sequence there is no right token.
      const int32_t right = std::max(0, truth.history[to]);
      state->history[to] = i == wrong ? (right + 1 + Below(39)) % 40 : right;
    }
    slot.pace = static_cast<u64>(count);
  }

  static std::string CheckResult(const Row& row, const StepResult& result,
                                 const DecoderState& before, const DecoderState& after) {
    const SlotState &old = before.slots[row.slot], &now = after.slots[row.slot];
    if (result.slot != row.slot || result.finish != now.finish ||
        result.count != now.history_length - old.history_length) {
      return "the result is not what the slot says";
    }
    const int32_t* history = after.history.data() + size_t{row.slot} * 48 + old.history_length;
    if (!std::equal(result.tokens, result.tokens + result.count, history)) return "wrong tokens";
    return "";
  }

  std::string CheckSlot(u32 s, const DecoderState& state, const DecoderState& truth) const {
    const SlotState& slot = state.slots[s];
    const size_t first = size_t{s} * 48;
    if (slot.history_length > truth.slots[s].history_length ||
        !std::equal(state.history.begin() + static_cast<long>(first),
                    state.history.begin() + static_cast<long>(first + slot.history_length),
                    truth.history.begin() + static_cast<long>(first))) {
      return "the history is not the plain run's";
    }
    if (slot.history_length > slot.prompt_length && slot.context_length + 1 != slot.history_length) {
      return "the context does not end before the last token";
    }
    const size_t vector = 16 * sizeof(float);  // one token's key or value: one layer, one head
    for (u32 p = 0; p < slot.context_length; ++p) {
      // Said to be cached from the start, but there when slot 0 has gone over it.
      if (s == 1 && p < kShared && p >= state.slots[0].context_length) continue;
      const size_t block = rig_->BlockOf(static_cast<int>(s), static_cast<int>(p) / block_);
      for (size_t value = 0; value < 2; ++value) {
        const size_t at =
            ((block * 2 + value) * static_cast<size_t>(block_) + p % static_cast<u32>(block_)) *
            vector;
        if (std::memcmp(state.cache.data() + at, truth.cache.data() + at, vector) != 0) {
          return absl::StrCat("KV of position ", p, " is not the plain run's");
        }
      }
    }
    return "";
  }

  DecoderModel& model_;
  const int block_;
  std::mt19937_64 random_;
  std::unique_ptr<Executor> plain_;
  std::unique_ptr<DecoderRig> plain_rig_;
  std::unique_ptr<SimExecutor> sim_;
  std::unique_ptr<DecoderRig> rig_;
};

// `histories` in all, `each` per model and setting, over windows, QK-norm, workers, pages and policies.
inline DraftCampaignResult RunDraftCampaign(uint64_t seed, int histories, int each) {
  DraftCampaignResult result;
  std::mt19937_64 random(seed);
  const int windows[] = {0, 7, 8};
  std::vector<std::unique_ptr<DecoderModel>> models;
  for (size_t i = 0; i < 3; ++i) models.push_back(MakeDraftModel(windows[i], i == 1));
  for (int done = 0; done < histories; done += each) {
    SimExecutorOptions options;
    options.workers = 1 + static_cast<int>(random() % 4);
    options.pages = 5 + static_cast<int>(random() % 8);
    options.policy = Schedulers()[random() % 3].name;
    DraftHistories lives(models[static_cast<size_t>(done / each) % 3].get(), options);
    // Other sequences every few histories: their plain run has to be made each time.
    for (int i = 0; i < each; i += 5) {
      lives.Run(random() % 1'000'000, std::min(5, each - i), &result);
    }
  }
  return result;
}

}  // namespace eventide
