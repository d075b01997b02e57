// Speculation with a draft model: what it is held to on every device. The tokens are those of a plain run,
// and the draft model's KV is, to the bit, what the draft model alone computes from the same tokens.
#pragma once

#include <cstring>

#include "tests/serve/speculation_case.h"

namespace eventide {

// KV memory of a model, read position by position.
class KvReader {
 public:
  KvReader(const Decoder& decoder, Executor* executor)
      : decoder_(decoder), buffer_(executor->TensorBuffer(decoder.cache)), memory_(buffer_.bytes) {
    REQUIRE(executor->Read(buffer_, 0, memory_.data(), buffer_.bytes).ok());
  }
  // Keys and values of all layers and heads.
  std::vector<char> At(BlockId block, uint64_t position) const {
    std::vector<char> bytes;
    Visit(block, position, [&](const char* from, size_t count) {
      bytes.insert(bytes.end(), from, from + count);
    });
    return bytes;
  }
  bool Holds(BlockId block, uint64_t position, const std::vector<char>& bytes) const {
    size_t at = 0;
    bool same = true;
    Visit(block, position, [&](const char* from, size_t count) {
      same = same && std::memcmp(from, bytes.data() + at, count) == 0;
      at += count;
    });
    return same && at == bytes.size();
  }

 private:
  template <class Take>
  void Visit(BlockId block, uint64_t position, const Take& take) const {
    const ModelConfig& c = decoder_.config;
    const int64_t vector = c.head_dim * static_cast<int64_t>(DTypeSize(decoder_.storage));
    const int64_t block_size = decoder_.limits.block_size, heads = 2 * c.kv_heads;
    for (int64_t layer = 0; layer < c.layers; ++layer) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t row = ((layer * decoder_.limits.num_blocks + block) * heads + head) * block_size +
                            static_cast<int64_t>(position) % block_size;
        take(memory_.data() + row * vector, static_cast<size_t>(vector));
      }
    }
  }

  const Decoder& decoder_;
  Buffer buffer_;
  std::vector<char> memory_;
};

// KV of all positions of a text, as a model alone computes it from a prompt.
class PlainKv {
 public:
  PlainKv(const DraftRunnerOptions& o, const DraftModelOptions& model) {
    const RunnerOptions options = OptionsFor(o);
    const auto source = RandomWeights(DraftConfig(model), model.seed);
    RunnerOptions own = options;
    own.limits.max_model_len = std::min(options.limits.max_model_len, model.max_positions);
    own.limits.num_blocks = 0;
    auto runner = MegakernelRunner::Create(*source, own);
    REQUIRE(runner.ok());
    runner_ = std::move(*runner);
  }
  std::vector<std::vector<char>> Of(Tokens text) {
    const RunnerInfo& info = runner_->info();
    text.resize(std::min<size_t>(text.size(), info.max_model_len));
    std::vector<BlockId> blocks;
    for (BlockId b = 0; b * info.block_size < text.size(); ++b) blocks.push_back(b);
    const auto length = static_cast<uint32_t>(text.size());
    SlotAdmission admission;
    admission.tokens = text;
    admission.prompt_length = admission.max_length = length;
    REQUIRE(runner_->Admit(admission).ok());
    std::vector<BlockTableUpdate> updates = {{.slot = 0, .first = 0, .blocks = blocks}};
    for (uint32_t done = 0; done < length;) {
      const Row row = {0, std::min<uint32_t>(length - done, 100), 0, kRowNone};
      REQUIRE(runner_->Submit({step_++, {&row, 1}, updates}).ok());
      REQUIRE(runner_->Wait().status.ok());
      updates.clear();
      done += row.query_length;
    }
    runner_->Release(0);
    const KvReader reader(runner_->decoder(), &runner_->executor());
    std::vector<std::vector<char>> kv;
    for (uint64_t p = 0; p < length; ++p) kv.push_back(reader.At(blocks[p / info.block_size], p));
    return kv;
  }

 private:
  std::unique_ptr<MegakernelRunner> runner_;
  uint64_t step_ = 0;
};

// Between the engine and the runner: after every step, compares the draft model's KV of all sequences.
class DraftKvChecker final : public StepRunner {
 public:
  // `alone`: the draft model, for the right KV.
  DraftKvChecker(const DraftRunnerOptions& o, const DraftModelOptions& alone, MegakernelRunner* runner)
      : runner_(*runner), info_(runner->info()), plain_(o, alone) {
    info_.max_steps_in_flight = 1;
  }
  uint64_t compared() const { return compared_; }
  uint64_t wrong() const { return wrong_; }

  const RunnerInfo& info() const override { return info_; }
  absl::Status Admit(const SlotAdmission& a) override {
    slots_[a.slot] = {.history = Tokens(a.tokens.begin(), a.tokens.end()), .context = a.cached_tokens};
    return runner_.Admit(a);
  }
  absl::Status Submit(const StepInput& input) override {
    for (const BlockTableUpdate& update : input.block_updates) {
      std::vector<BlockId>& table = slots_[update.slot].table;
      table.resize(update.first);
      table.insert(table.end(), update.blocks.begin(), update.blocks.end());
    }
    rows_.assign(input.rows.begin(), input.rows.end());
    return runner_.Submit(input);
  }
  std::optional<StepOutcome> Poll() override { return std::nullopt; }
  StepOutcome Wait() override {
    StepOutcome outcome = runner_.Wait();
    REQUIRE(outcome.status.ok());
    DraftModel& drafts = *runner_.draft_model();
    const KvReader reader(drafts.decoder(), &drafts.executor());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const RowResult& row = outcome.rows[i];
      Slot& slot = slots_[row.slot];
      slot.history.insert(slot.history.end(), row.tokens.begin(), row.tokens.end());
      if (rows_[i].query_length != kDeviceKnows) {
        slot.context += row.query_length;
      } else if (row.query_length > 0) {
        const bool all_right = row.accepted > 0 && row.accepted + 1 == row.query_length;
        slot.context = slot.history.size() - 1 - all_right;
      }
      Compare(slot, reader);
    }
    return outcome;
  }
  void Release(uint32_t slot) override { runner_.Release(slot); }

 private:
  struct Slot {
    Tokens history;
    uint64_t context = 0;  // tokens whose KV the draft model must have
    std::vector<BlockId> table = {};
  };

  void Compare(const Slot& slot, const KvReader& reader) {
    const auto positions =
        static_cast<uint64_t>(runner_.draft_model()->decoder().limits.max_model_len);
    // A sequence that has grown beyond the draft model's last position is not caught up with.
    const uint64_t most = slot.context < positions ? slot.context : positions - 1;
    // Of sequences that begin alike KV is alike: the longest so far knows all of them.
    std::vector<std::vector<char>>* right = nullptr;
    for (auto& [text, kv] : known_) {
      if (text.size() >= most && std::equal(text.begin(), text.begin() + static_cast<long>(most),
                                            slot.history.begin())) {
        right = &kv;
      }
    }
    if (right == nullptr) {
      Tokens text(slot.history.begin(), slot.history.begin() + static_cast<long>(most));
      right = &known_.emplace_back(text, plain_.Of(text)).second;
    }
    for (uint64_t p = 0; p < most; ++p) {
      wrong_ += !reader.Holds(slot.table[p / info_.block_size], p, (*right)[p]);
      ++compared_;
    }
  }

  MegakernelRunner& runner_;
  RunnerInfo info_;
  PlainKv plain_;
  std::map<uint32_t, Slot> slots_;
  std::vector<Row> rows_;
  std::deque<std::pair<Tokens, std::vector<std::vector<char>>>> known_;
  uint64_t compared_ = 0, wrong_ = 0;
};

inline constexpr int kTargetLayers = 4;  // of test-llama

// A draft model that is right now and then, and one that never is but by chance.
inline void CheckDraftModels(const std::string& device, const std::vector<uint32_t>& lengths,
                             uint32_t max_tokens) {
  const std::vector<Request> requests = SomeRequests(max_tokens);
  const Served plain = Serve(MakeDraftRunner({.device = device}).get(), requests, 0);
  for (const DraftModelOptions& model :
       {DraftModelOptions{}, DraftModelOptions{.layers = kTargetLayers, .seed = 12}}) {
    auto runner = MakeDraftRunner({.device = device, .draft_model = model});
    for (const uint32_t drafts : lengths) {
      INFO(drafts << " drafts, seed " << model.seed);
      const Served served = Serve(runner.get(), requests, drafts);
      CHECK(served.tokens == plain.tokens);
      CHECK(served.stats.drafts.drafted > 0);
      CHECK(served.stats.drafts.accepted < served.stats.drafts.drafted);
      if (model.seed == 11) CHECK(served.stats.drafts.accepted > 0);
      CHECK(served.stats.drafts.drafted_at[drafts - 1] > 0);
    }
    // The same runner serves without drafts too.
    CHECK(Serve(runner.get(), requests, 0).tokens == plain.tokens);
  }
}

inline void CheckOwnDraftModel(const std::string& device, uint32_t max_tokens,
                               const std::vector<uint32_t>& lengths) {
  const DraftModelOptions same = {.layers = kTargetLayers};
  auto runner = MakeDraftRunner({.device = device,
                                 .max_model_len = static_cast<int>(max_tokens) + 60,
                                 .draft_model = same});
  std::vector<Request> requests = SomeRequests(max_tokens);
  requests.resize(2);
  const Served plain = Serve(runner.get(), requests, 0);
  for (const uint32_t drafts : lengths) {
    const Served served = Serve(runner.get(), requests, drafts);
    CHECK(served.tokens == plain.tokens);
    const DraftStats& stats = served.stats.drafts;
    CHECK(stats.accepted == stats.drafted);
    CHECK(stats.tokens == 2 * max_tokens - 1);  // one each comes with its prompt
    CHECK(stats.rows <= 2 * (max_tokens / (1 + drafts) + 2));
  }
}

// Most of which begin alike.
inline std::vector<Request> AlikeRequests(uint32_t max_tokens) {
  std::vector<Request> requests = SomeRequests(max_tokens);
  for (size_t i = 4; i < requests.size(); ++i) requests[i].prompt = requests[3].prompt;
  return requests;
}

inline std::vector<Request> Greedy(std::vector<Request> requests) {
  for (Request& request : requests) {
    request.sampling.temperature = 0;
    request.sampling.top_k = 0;
    request.sampling.top_p = 1;
  }
  return requests;
}

inline Served CheckDraftKv(const DraftRunnerOptions& options, uint32_t drafts,
                           const std::vector<Request>& requests, EngineOptions engine = {}) {
  DraftRunnerOptions without = options;
  without.draft_model.reset();
  without.num_blocks = 0;
  const Served plain = Serve(MakeDraftRunner(without).get(), requests, 0);
  auto runner = MakeDraftRunner(options);
  DraftKvChecker checker(options, *options.draft_model, runner.get());
  const Served served = Serve(&checker, requests, drafts, 0, engine);
  CHECK(served.tokens == plain.tokens);
  CHECK(served.stats.drafts.accepted > 0);
  CHECK(checker.compared() > 1000);
  CHECK(checker.wrong() == 0);
  return served;
}

}  // namespace eventide
