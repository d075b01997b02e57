// What must hold for the real runner under the real engine on every backend: no token and no bit
// depends on company, preemption or the prefix cache, and a step may have no rows.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/presets.h"
#include "models/random_weights.h"
#include "serve/clock.h"
#include "serve/engine.h"
#include "serve/hash.h"
#include "serve/megakernel_runner.h"
#include "tests/support/test.h"

namespace eventide {

inline std::unique_ptr<MegakernelRunner> MakeRunner(int64_t num_blocks, int rows = 8,
                                                    const std::string& device = "cpu",
                                                    DType storage = DType::kF32) {
  const auto source = RandomWeights(*PresetConfig("test-llama"), 11);
  RunnerOptions options;
  options.backend.device = device;
  options.backend.workers = device == "cuda" ? 0 : 2;
  options.storage = storage;
  options.limits.max_rows = rows;
  options.limits.max_outputs = rows;
  options.limits.max_tokens = 64;
  options.limits.max_model_len = 256;
  options.limits.num_blocks = num_blocks;
  auto runner = MegakernelRunner::Create(*source, options);
  INFO(runner.status());
  REQUIRE(runner.ok());
  return std::move(*runner);
}

inline std::vector<Request> SomeRequests() {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    Request request;
    request.id = "r" + std::to_string(i);
    for (int t = 0; t < 5 + 17 * (i % 5); ++t) request.prompt.push_back((t * 31 + i * 7) % 257);
    request.sampling.max_tokens = static_cast<uint32_t>(50 + i);
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    request.sampling.top_k = i % 3 == 1 ? 20 : 0;
    request.sampling.top_p = i % 3 == 2 ? 0.8f : 1.0f;
    request.sampling.ignore_eos = true;
    requests.push_back(request);
  }
  return requests;
}

struct Served {
  std::map<std::string, std::vector<TokenId>> tokens;
  EngineStats stats;
};

inline Served Serve(MegakernelRunner* runner, const std::vector<Request>& requests) {
  SteadyClock clock;
  auto engine = Engine::Create(runner, &clock, {});
  INFO(engine.status());
  REQUIRE(engine.ok());
  Served served;
  for (const Request& request : requests) {
    REQUIRE((*engine)
                ->AddRequest(request,
                             [&](const RequestOutput& output) {
                               auto& tokens = served.tokens[output.id];
                               tokens.insert(tokens.end(), output.tokens.begin(),
                                             output.tokens.end());
                               if (output.finish_reason == FinishReason::kNone) return;
                               CHECK(output.status.ok());
                               CHECK(output.finish_reason == FinishReason::kLength);
                             })
                .ok());
  }
  while ((*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
  CHECK((*engine)->CheckIntegrity().ok());
  served.stats = (*engine)->stats();
  CHECK(served.stats.kv_blocks_used == 0);
  return served;
}

inline void CheckCompany(const std::string& device, DType storage) {
  const std::vector<Request> requests = SomeRequests();
  std::map<std::string, std::vector<TokenId>> alone;
  auto roomy = MakeRunner(128, 8, device, storage);
  for (const Request& request : requests) {
    for (auto& [id, tokens] : Serve(roomy.get(), {request}).tokens) alone[id] = tokens;
  }
  for (const Request& request : requests) {
    CHECK(alone[request.id].size() == request.sampling.max_tokens);
  }
  const Served batched = Serve(roomy.get(), requests);
  CHECK(batched.tokens == alone);
  CHECK(batched.stats.max_batch >= 5);
  CHECK(batched.stats.preemptions == 0);
  // 9 blocks hold the longest request (73 + 59 tokens) and nothing beside it.
  auto tight = MakeRunner(9, 8, device, storage);
  const Served preempted = Serve(tight.get(), requests);
  CHECK(preempted.tokens == alone);
  CHECK(preempted.stats.preemptions > 0);
}

// Remembers a hash of the logits behind every token, by slot admission in order.
class HashingRunner final : public StepRunner {
 public:
  explicit HashingRunner(MegakernelRunner* runner) : runner_(runner), info_(runner->info()) {
    info_.max_steps_in_flight = 1;  // logits are read between steps
  }
  const RunnerInfo& info() const override { return info_; }
  absl::Status Admit(const SlotAdmission& admission) override {
    of_slot_[admission.slot] = hashes.size();
    hashes.emplace_back();
    return runner_->Admit(admission);
  }
  absl::Status Submit(const StepInput& input) override { return runner_->Submit(input); }
  std::optional<StepOutcome> Poll() override { return std::nullopt; }
  StepOutcome Wait() override {
    StepOutcome outcome = runner_->Wait();
    int output = 0;
    for (const RowResult& row : outcome.rows) {
      if (row.tokens.empty()) continue;
      const auto logits = runner_->Logits(output++, 1);
      REQUIRE(logits.ok());
      hashes[of_slot_[row.slot]].push_back(HashBytes(
          {reinterpret_cast<const char*>(logits->data()), logits->size() * sizeof(float)}));
    }
    return outcome;
  }
  void Release(uint32_t slot) override { runner_->Release(slot); }

  std::vector<std::vector<uint64_t>> hashes;  // [admission][token]

 private:
  MegakernelRunner* runner_;
  RunnerInfo info_;
  std::map<uint32_t, size_t> of_slot_;
};

struct Hashed {
  std::vector<std::vector<uint64_t>> logits;  // [admission][token]
  uint64_t hits = 0;
};

// Serves beginnings of one text, of these lengths: one by one, then all together.
inline Hashed HashLogits(MegakernelRunner* runner, bool cached, const std::vector<int>& lengths,
                         uint32_t max_tokens) {
  HashingRunner hashing(runner);
  SteadyClock clock;
  EngineOptions options;
  options.prefix_cache.enabled = cached;
  auto engine = Engine::Create(&hashing, &clock, options);
  REQUIRE(engine.ok());
  for (int round = 0; round < 2; ++round) {
    for (int length : lengths) {
      Request request;
      request.id = std::to_string(length) + (round ? "b" : "a");
      for (int t = 0; t < length; ++t) request.prompt.push_back(t * 31 % 257);
      request.sampling.max_tokens = max_tokens;
      request.sampling.temperature = 0;
      request.sampling.ignore_eos = true;
      REQUIRE((*engine)->AddRequest(request, nullptr).ok());
      while (round == 0 && (*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
    }
    while ((*engine)->HasWork()) REQUIRE((*engine)->Step().ok());
  }
  return {hashing.hashes, (*engine)->stats().prefix_hit_tokens};
}

// Each request must hit so many tokens of the cache, and its logits must be those of a miss.
inline void CheckHitBits(const std::string& device, DType storage, const std::vector<int>& lengths,
                         uint32_t max_tokens, uint64_t hits) {
  auto runner = MakeRunner(128, 8, device, storage);
  const Hashed hit = HashLogits(runner.get(), true, lengths, max_tokens);
  const Hashed miss = HashLogits(runner.get(), false, lengths, max_tokens);
  CHECK(miss.hits == 0);
  CHECK(hit.hits == hits);
  REQUIRE(hit.logits.size() == 2 * lengths.size());
  CHECK(hit.logits == miss.logits);
  for (const auto& tokens : hit.logits) CHECK(tokens.size() == max_tokens);
  CHECK(hit.logits[0] != hit.logits[1]);
}

inline void CheckZeroRows(const std::string& device, DType storage) {
  auto runner = MakeRunner(16, 2, device, storage);
  const auto step = [&](std::vector<Row> rows) {
    const std::vector<BlockId> blocks = {5};
    const BlockTableUpdate update{0, 0, blocks};
    StepInput input;
    input.rows = rows;
    if (!rows.empty()) input.block_updates = {&update, 1};
    REQUIRE(runner->Submit(input).ok());
    const StepOutcome outcome = runner->Wait();
    INFO(device << ": " << outcome.status);
    REQUIRE(outcome.status.ok());
    REQUIRE(outcome.rows.size() == rows.size());
    return rows.empty() ? std::vector<TokenId>() : outcome.rows[0].tokens;
  };
  std::vector<TokenId> said[2];
  for (int with = 0; with < 2; ++with) {
    const auto nothing = [&] {
      for (int i = 0; i < 2 * with; ++i) step({});
    };
    nothing();
    SlotAdmission admission;
    const std::vector<TokenId> prompt = {1, 2, 3, 4, 5};
    admission.tokens = prompt;
    admission.max_length = 16;
    REQUIRE(runner->Admit(admission).ok());
    nothing();
    for (const Row& row :
         {Row{0, 3, 0, kRowNone}, Row{0, 2, 0, kRowSample}, Row{0, kDeviceKnows, 0, kRowSample}}) {
      const std::vector<TokenId> tokens = step({row});
      said[with].insert(said[with].end(), tokens.begin(), tokens.end());
      nothing();
    }
    runner->Release(0);
    nothing();
  }
  CHECK(said[0].size() == 2);
  CHECK(said[0] == said[1]);
}

}  // namespace eventide
