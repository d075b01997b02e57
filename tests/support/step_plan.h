// Random steps of a serving engine that never looks at a token: sequences of all lengths come and go, are
// prefilled in chunks of any size and decoded, alone and up to a whole batch, with KV blocks from one
// shuffled heap. What a step does to lengths follows from the plan, so that any number of runners can be
// given the same steps and be held to them.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "core/status.h"
#include "serve/step.h"

namespace eventide {

struct StepPlanOptions {
  uint64_t seed = 1;
  uint32_t max_prompt = 1400;
  uint32_t max_generated = 80;
  bool sampled = false;  // some sequences with a temperature; else all are greedy
};

// KV blocks that are always enough.
inline int64_t StepPlanBlocks(const StepPlanOptions& options, int rows, int block_size) {
  return rows * ((int64_t{options.max_prompt} + options.max_generated) / block_size + 1);
}

struct PlannedRow {
  Row row;
  uint32_t query = 0;    // tokens the device processes
  uint32_t outputs = 0;  // logits it leaves
  bool appends = false;
  bool finishes = false;  // the slot has ended after the step
  uint32_t context = 0;   // tokens with KV after the step
};

struct PlannedAdmission {
  SlotAdmission admission;
  std::vector<TokenId> tokens;
};

struct PlannedBlocks {
  uint32_t slot, first;
  std::vector<BlockId> blocks;
};

struct PlannedStep {
  std::vector<uint32_t> released;
  std::vector<PlannedAdmission> admitted;
  std::vector<PlannedRow> rows;
  std::vector<PlannedBlocks> blocks;
  // False if a row of a slot that has ended is in it: such rows leave no logits.
  bool has_logits = true;
};

class StepPlan {
 public:
  StepPlan(const RunnerInfo& info, const StepPlanOptions& options)
      : info_(info), options_(options), random_(options.seed), slots_(info.max_slots) {
    for (BlockId b = 0; b < info.num_blocks; ++b) free_.push_back(b);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  // `turnover`: sequences may end and begin. Not while another step is in flight.
  PlannedStep Next(bool turnover) {
    PlannedStep step;
    if (turnover) {
      for (uint32_t slot = 0; slot < slots_.size(); ++slot) Turn(slot, &step);
    }
    if (Chance(3)) return step;  // no rows at all
    const Kind kind = Chance(50) ? kDecode : Chance(70) ? kMixed : kPrefill;
    const uint32_t rows = PickRows();
    uint32_t budget = info_.max_batched_tokens;
    if (kind != kDecode && Chance(50)) budget = Between(1, budget);
    std::vector<uint32_t> order(slots_.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const bool any : {false, true}) {  // if no slot is of the kind, one that is not
      for (const uint32_t slot : order) {
        if (budget == 0 || step.rows.size() >= (any ? 1 : rows)) break;
        if (any || OfKind(slot, kind)) AddRow(slot, &budget, &step);
      }
      if (!step.rows.empty()) break;
    }
    return step;
  }

  // Slots that are admitted: to be released by whoever leaves the runner to others.
  std::vector<uint32_t> Live() const {
    std::vector<uint32_t> live;
    for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
      if (slots_[slot].live) live.push_back(slot);
    }
    return live;
  }

 private:
  enum Kind { kDecode, kMixed, kPrefill };
  struct Slot {
    bool live = false, surplus = false;
    uint32_t history = 0, context = 0, max_length = 0;
    std::vector<BlockId> blocks;
    bool Ended() const { return history == max_length; }
    bool Decodes() const { return history - context == 1 && !Ended(); }
  };

  uint32_t Between(uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, std::max(low, high))(random_);
  }
  bool Chance(uint32_t percent) { return Between(0, 99) < percent; }
  // A multiple of `unit`, or one beside it.
  uint32_t Near(uint32_t unit, uint32_t low, uint32_t high) {
    return unit * Between(low, high) + Between(0, 2) - 1;
  }

  uint32_t PickRows() {
    static constexpr uint32_t kEdges[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64};
    const uint32_t most = info_.max_slots;
    return std::min(most, Chance(60) ? kEdges[Between(0, std::size(kEdges) - 1)] : Between(1, most));
  }
  uint32_t PickPrompt() {
    const uint32_t block = info_.block_size;
    const uint32_t length = Chance(55)   ? Between(1, 48)
                            : Chance(55) ? Near(block, 1, 16)
                            : Chance(70) ? Near(64, 2, 12)
                                         : Near(256, 3, 5);  // about 1,024: chunks of 256 begin
    return std::clamp(length, 1u, options_.max_prompt);
  }
  uint32_t PickChunk(uint32_t context, uint32_t left) {
    const auto to = [&](uint32_t unit) {  // so that the context ends at a boundary or beside it
      return (context / unit + Between(1, 3)) * unit + Between(0, 2) - 1 - context;
    };
    switch (Between(0, 5)) {
      case 0:
        return 1;
      case 1:
      case 2:
        return left;
      case 3:
        return to(info_.block_size);
      case 4:
        return to(64);
      default:
        return Between(1, left);
    }
  }

  bool OfKind(uint32_t slot, Kind kind) const {
    const Slot& s = slots_[slot];
    if (s.Ended()) return s.live && s.surplus && kind != kPrefill;
    return s.live && (s.Decodes() ? kind != kPrefill : kind != kDecode);
  }

  void Turn(uint32_t slot, PlannedStep* step) {
    Slot& s = slots_[slot];
    const bool over = s.live && s.Ended() && !(s.surplus && Chance(50));
    if (!over && s.live) return;
    if (over) {
      step->released.push_back(slot);
      free_.insert(free_.end(), s.blocks.begin(), s.blocks.end());
      std::shuffle(free_.begin(), free_.end(), random_);
      s = Slot();
    }
    PlannedAdmission admitted;
    SlotAdmission& a = admitted.admission;
    const uint32_t prompt = std::min<uint32_t>(PickPrompt(), info_.max_model_len - 2);
    for (uint32_t i = 0; i < prompt; ++i)
      admitted.tokens.push_back(static_cast<TokenId>(Between(0, info_.vocab_size - 1)));
    s.live = true;
    s.surplus = Chance(20);
    s.history = a.prompt_length = prompt;
    s.max_length = a.max_length = std::min<uint32_t>(
        prompt + Between(1, options_.max_generated), static_cast<uint32_t>(info_.max_model_len));
    a.slot = slot;
    a.key = random_();
    if (options_.sampled && Chance(50)) {
      a.temperature = 0.8f;
      a.top_k = Chance(50) ? Between(1, 40) : 0;
      a.top_p = Chance(50) ? 0.9f : 1.0f;
    }
    step->admitted.push_back(std::move(admitted));
  }

  void AddRow(uint32_t slot, uint32_t* budget, PlannedStep* step) {
    Slot& s = slots_[slot];
    if (!s.live) return;
    PlannedRow planned;
    planned.row = {slot, kDeviceKnows, 0, kRowSample};
    planned.finishes = s.Ended();
    if (s.Ended()) {
      // Ended in a step that the engine had not seen when it planned this one.
      s.surplus = false;
      planned.context = s.context;
      step->has_logits = false;
      step->rows.push_back(planned);
      return;
    }
    const uint32_t left = s.history - s.context;
    const uint32_t chunk =
        left == 1 ? 1 : std::clamp(PickChunk(s.context, left), 1u, std::min(left, *budget));
    Reserve(slot, s.context + chunk, step);
    planned.query = chunk;
    planned.appends = chunk == left;
    if (!s.Decodes() || Chance(10)) planned.row.query_length = chunk;
    if (!planned.appends) planned.row.sampling = Chance(25) ? kRowAllLogits : kRowNone;
    planned.outputs = planned.appends ? 1 : planned.row.sampling == kRowAllLogits ? chunk : 0;
    s.context += chunk;
    if (planned.appends) ++s.history;
    planned.finishes = s.Ended();
    planned.context = s.context;
    *budget -= chunk;
    step->rows.push_back(planned);
  }

  // Blocks for `tokens` tokens, of which the runner has enough (StepPlanBlocks).
  void Reserve(uint32_t slot, uint32_t tokens, PlannedStep* step) {
    std::vector<BlockId>& blocks = slots_[slot].blocks;
    const size_t wanted = (tokens + info_.block_size - 1) / info_.block_size;
    if (wanted <= blocks.size()) return;
    EVT_CHECK(wanted - blocks.size() <= free_.size());
    PlannedBlocks update{slot, static_cast<uint32_t>(blocks.size()), {}};
    while (blocks.size() < wanted) {
      update.blocks.push_back(free_.back());
      blocks.push_back(free_.back());
      free_.pop_back();
    }
    step->blocks.push_back(std::move(update));
  }

  const RunnerInfo info_;
  const StepPlanOptions options_;
  std::mt19937_64 random_;
  std::vector<Slot> slots_;
  std::vector<BlockId> free_;
};

}  // namespace eventide
