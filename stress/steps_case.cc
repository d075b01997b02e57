#include "stress/steps_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_format.h"
#include "runtime/sim_executor.h"
#include "stress/poison.h"
#include "stress/reference.h"
#include "stress/sequence_steps.h"

namespace eventide {
namespace {

constexpr int kMostReferenceTokens = 48;  // float64, one token at a time

// Every block of KV memory holds NaNs; blocks that nobody owns and positions that no token has must
// still hold them afterwards.
class KvGuard {
 public:
  KvGuard(MegakernelRunner* runner) : runner_(*runner), config_(runner->decoder().config) {}

  absl::Status Fill() {
    const Buffer cache = Cache();
    return runner_.executor().Fill(cache, 0, 0xff, cache.bytes);
  }

  // Empty, or what was written that is nobody's. `tokens[block]` are those with KV, from its start.
  absl::StatusOr<std::string> Check(const std::vector<int>& tokens) {
    const Buffer cache = Cache();
    std::vector<uint8_t> bytes(static_cast<size_t>(cache.bytes));
    RETURN_IF_ERROR(runner_.executor().Read(cache, 0, bytes.data(), cache.bytes));
    const int block_size = static_cast<int>(runner_.info().block_size);
    const size_t vector =
        static_cast<size_t>(config_.head_dim * DTypeSize(runner_.decoder().storage));
    size_t at = 0;
    for (int layer = 0; layer < config_.layers; ++layer) {
      for (size_t block = 0; block < tokens.size(); ++block) {
        for (int head = 0; head < 2 * config_.kv_heads; ++head) {
          for (int token = 0; token < block_size; ++token, at += vector) {
            if (token < tokens[block]) continue;
            const auto begin = bytes.begin() + static_cast<long>(at);
            if (std::all_of(begin, begin + static_cast<long>(vector),
                            [](uint8_t byte) { return byte == 0xff; })) {
              continue;
            }
            return absl::StrFormat("layer %d, KV block %d, token %d was written, but is nobody's",
                                   layer, block, token);
          }
        }
      }
    }
    return std::string();
  }

 private:
  Buffer Cache() { return runner_.executor().TensorBuffer(runner_.decoder().cache); }
  MegakernelRunner& runner_;
  const ModelConfig& config_;
};

std::vector<SequencePlan> PlansOf(const StressCase& c, const MegakernelRunner& runner) {
  const RunnerInfo& info = runner.info();
  StressRandom random(static_cast<uint64_t>(c.Get("mix")) + 77);
  std::vector<BlockId> blocks(info.num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0u);
  for (size_t i = blocks.size(); i > 1; --i) {
    std::swap(blocks[i - 1], blocks[static_cast<size_t>(random.Below(static_cast<int64_t>(i)))]);
  }
  std::vector<SequencePlan> plans;
  size_t next_block = 0;
  for (size_t i = 0; i < c.Count("prompts"); ++i) {
    SequencePlan plan;
    const int64_t prompt = c.At("prompts", i, 1);
    plan.out = static_cast<int>(c.At("outs", i, 1));
    plan.prompt = StressTokens(prompt, static_cast<int>(info.vocab_size),
                               static_cast<uint64_t>(c.Get("text")) * 1000 + i);
    plan.key = 0x5eed + i;
    plan.temperature = i % 2 == 1 ? 0.8f : 0.0f;
    const int64_t need = (prompt + plan.out + info.block_size - 1) / info.block_size;
    for (int64_t b = 0; b < need && next_block < blocks.size(); ++b) {
      plan.blocks.push_back(blocks[next_block++]);
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

absl::Status CheckFields(const StressCase& c, const RunnerInfo& info) {
  const size_t sequences = c.Count("prompts");
  if (sequences < 1 || sequences > info.max_slots) {
    return absl::InvalidArgumentError("prompts: one to `rows` sequences");
  }
  for (size_t i = 0; i < sequences; ++i) {
    const int64_t prompt = c.At("prompts", i, 1), out = c.At("outs", i, 1);
    if (prompt < 1 || out < 1 || prompt + out > static_cast<int64_t>(info.max_model_len)) {
      return absl::InvalidArgumentError("prompts and outs: at least 1, together at most `len`");
    }
  }
  if (c.Get("chunk", 1) < 1) return absl::InvalidArgumentError("chunk: at least 1");
  return absl::OkStatus();
}

// A sequence by itself, with steps as large as the token budget lets them be.
absl::StatusOr<SequenceResult> Alone(MegakernelRunner* runner, const SequencePlan& plan) {
  ASSIGN_OR_RETURN(const auto steps, SequenceSteps::Admit(runner, {plan}, nullptr));
  while (!steps->AllDone()) {
    RETURN_IF_ERROR(steps->Step({static_cast<int>(runner->info().max_batched_tokens)}));
  }
  return steps->result(0);
}

// A step in which each sequence takes part or not, with a chunk of any size up to the case's; now and
// then nobody does.
std::vector<int> RandomLengths(const SequenceSteps& steps, size_t sequences, int64_t chunk,
                               int64_t budget, StressRandom* random) {
  std::vector<int> lengths(sequences, 0);
  if (random->Chance(4)) return lengths;  // a step of no rows is a step
  int64_t left = budget;
  for (size_t k = 0, first = static_cast<size_t>(random->Below(static_cast<int64_t>(sequences)));
       k < sequences; ++k) {
    const size_t i = (first + k) % sequences;
    // The first one that can takes part, so that the case ends.
    const bool none_yet = left == budget;
    if (steps.Done(i) || left == 0 || (!none_yet && random->Chance(30))) continue;
    const int64_t most = std::min({left, chunk, std::max<int64_t>(1, steps.PromptLeft(i))});
    lengths[i] = static_cast<int>(random->Chance(50) ? most : random->Between(1, most));
    left -= lengths[i];
  }
  return lengths;
}

std::string CompareBits(size_t sequence, const SequenceResult& alone, const SequenceResult& mixed,
                        size_t vocab) {
  for (size_t i = 0; i < std::min(alone.logits.size(), mixed.logits.size()); ++i) {
    if (std::memcmp(&alone.logits[i], &mixed.logits[i], sizeof(float)) == 0) continue;
    return absl::StrFormat(
        "sequence %d, token %d: the logit of id %d is %a in the mixed steps and %a alone", sequence,
        i / vocab, i % vocab, mixed.logits[i], alone.logits[i]);
  }
  for (size_t i = 0; i < std::min(alone.tokens.size(), mixed.tokens.size()); ++i) {
    if (alone.tokens[i] == mixed.tokens[i]) continue;
    return absl::StrFormat("sequence %d: generated token %d is %d in the mixed steps and %d alone",
                           sequence, i, mixed.tokens[i], alone.tokens[i]);
  }
  if (alone.logits.size() != mixed.logits.size() || alone.tokens.size() != mixed.tokens.size()) {
    return absl::StrFormat("sequence %d: %d logits in the mixed steps and %d alone", sequence,
                           mixed.logits.size(), alone.logits.size());
  }
  return "";
}

// Against float64 on the same stored weights. One rounding of an activation is half a unit in the
// last place (2^-9 for bfloat16, 2^-12 for float16, 2^-25 for float32); a layer makes about five.
// Random small models have small logits beside their intermediate values: 16 units in RMS is beyond
// any of thousands that were tried, and an error of one wrong element is beyond that
// (docs/testing.md). Rounding exchanges nearly equal experts, so a choice among them is only compared by bits.
std::string CompareWithFloat64(const StressModel& model, const SequencePlan& plan,
                               const SequenceResult& alone) {
  const ModelConfig& config = model.source->config();
  if (config.experts_per_token < config.num_experts) return "";
  auto reference = Reference<double>::Load(*model.source, model.storage);
  if (!reference.ok()) return std::string(reference.status().message());
  const size_t vocab = model.reference->info().vocab_size;
  double error = 0, scale = 0;
  size_t at = 0;
  for (size_t i = 0; i < plan.prompt.size() && i < kMostReferenceTokens; ++i) {
    for (const double expected : reference->Next(plan.prompt[i])) {
      const double difference = alone.logits[at++] - expected;
      error += difference * difference;
      scale += expected * expected;
    }
  }
  const double unit = model.storage == DType::kBF16  ? 0x1p-9
                      : model.storage == DType::kF16 ? 0x1p-12
                                                     : 0x1p-22;
  const double relative = std::sqrt(error / scale);
  if (relative < 16 * unit) return "";
  return absl::StrFormat("logits of %d tokens (vocabulary %d) are off float64 by %.3g in RMS",
                         at / vocab, vocab, relative);
}

std::vector<int> OwnedTokens(const SequenceSteps& steps, const std::vector<SequencePlan>& plans,
                             const RunnerInfo& info) {
  std::vector<int> tokens(info.num_blocks, 0);
  for (size_t i = 0; i < plans.size(); ++i) {
    int64_t left = steps.Context(i);
    for (const BlockId block : plans[i].blocks) {
      tokens[block] = static_cast<int>(std::clamp<int64_t>(left, 0, info.block_size));
      left -= info.block_size;
    }
  }
  return tokens;
}

// The mixed steps themselves, into `outcome`; an error is one of the device's.
absl::Status RunMixed(const StressCase& c, StressContext* context, StressModel* model,
                      const std::vector<SequencePlan>& plans,
                      const std::vector<SequenceResult>& alone, StressOutcome* outcome) {
  MegakernelRunner* tested = model->tested.get();
  if (auto* sim = dynamic_cast<SimExecutor*>(&tested->executor())) {
    sim->SetSeed(static_cast<uint64_t>(c.Get("schedule")));
  }
  const PoisonBytes poison = PoisonFor(tested->decoder(), tested->executor());
  KvGuard kv(tested);
  RETURN_IF_ERROR(kv.Fill());
  StressRandom random(static_cast<uint64_t>(c.Get("mix")));
  ASSIGN_OR_RETURN(const auto steps, SequenceSteps::Admit(tested, plans, &context->faults()));
  const absl::Status status = [&] {
    while (!steps->AllDone()) {
      RETURN_IF_ERROR(Apply(poison, &tested->executor()));
      RETURN_IF_ERROR(steps->Step(RandomLengths(*steps, plans.size(), c.Get("chunk", 1),
                                                tested->info().max_batched_tokens, &random)));
    }
    return absl::OkStatus();
  }();
  outcome->steps = steps->steps();
  outcome->shapes = steps->shapes();
  RETURN_IF_ERROR(status);
  for (size_t i = 0; i < plans.size(); ++i) {
    const std::string what = CompareBits(i, alone[i], steps->result(i), tested->info().vocab_size);
    if (!what.empty()) outcome->Fail("wrong values", what);
  }
  ASSIGN_OR_RETURN(const std::string stray, kv.Check(OwnedTokens(*steps, plans, tested->info())));
  if (!stray.empty()) outcome->Fail("stray write", stray);
  return absl::OkStatus();
}

}  // namespace

void RandomStepsCase(StressRandom* random, StressCase* c) {
  const int64_t len = c->Get("len"), rows = c->Get("rows");
  std::vector<int64_t> prompts, outs;
  for (int64_t i = random->Between(1, rows); i > 0; --i) {
    const int64_t out = random->Between(1, std::min<int64_t>(6, len - 1));
    outs.push_back(out);
    prompts.push_back(random->Chance(50) ? random->Between(1, std::min<int64_t>(12, len - out))
                                         : random->Between(1, len - out));
  }
  c->SetList("prompts", std::move(prompts));
  c->SetList("outs", std::move(outs));
  c->Set("chunk", random->OneOf({1, 3, 16, 32, 64}));
  c->Set("mix", random->Below(1'000'000));
  c->Set("text", random->Below(1000));
  if (c->Has("pages")) c->Set("schedule", random->Below(1'000'000'000));
}

StressOutcome RunStepsCase(const StressCase& c, StressContext* context) {
  const absl::StatusOr<StressModel*> made = context->Model(c);
  if (!made.ok()) return StressOutcome::Invalid(std::string(made.status().message()));
  StressModel* model = *made;
  if (const absl::Status status = CheckFields(c, model->tested->info()); !status.ok()) {
    return StressOutcome::Invalid(std::string(status.message()));
  }
  const uint64_t compilations = CountBackends().compilations;
  const std::vector<SequencePlan> plans = PlansOf(c, *model->tested);
  StressOutcome outcome;
  std::vector<SequenceResult> alone;
  absl::Status status;
  for (const SequencePlan& plan : plans) {
    absl::StatusOr<SequenceResult> result = Alone(model->reference.get(), plan);
    status.Update(result.status());
    if (!status.ok()) break;
    alone.push_back(*std::move(result));
  }
  if (status.ok()) {
    const auto shortest = std::min_element(plans.begin(), plans.end(), [](auto& a, auto& b) {
      return a.prompt.size() < b.prompt.size();
    });
    const std::string what =
        CompareWithFloat64(*model, *shortest, alone[static_cast<size_t>(shortest - plans.begin())]);
    if (!what.empty()) outcome.Fail("inaccurate", what);
    status = RunMixed(c, context, model, plans, alone, &outcome);
  }
  if (!status.ok()) {
    outcome.Fail(absl::IsDeadlineExceeded(status) ? "stuck" : "error",
                 std::string(status.message()));
  }
  outcome.compilations_after_ready = CountBackends().compilations - compilations;
  return outcome;
}

}  // namespace eventide
