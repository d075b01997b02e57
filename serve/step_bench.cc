#include "serve/step_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "serve/step_bench_limits.h"

namespace eventide {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWallSteps = 64;

double Since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// splitmix64: inputs of a measurement need no better.
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// `count` numbers in (-1, 1) as they are stored.
std::vector<uint8_t> RandomValues(DType storage, int64_t count, uint64_t seed) {
  const int64_t size = DTypeSize(storage);
  std::vector<uint8_t> bytes(static_cast<size_t>(count * size));
  for (int64_t i = 0; i < count; ++i) {
    const float value =
        static_cast<float>(static_cast<int64_t>(NextRandom(&seed) >> 40) - (1 << 23)) * 0x1p-23f;
    const u32 bits = FloatBits(value);
    const u16 half = storage == DType::kF16 ? FloatToHalf(value) : static_cast<u16>(bits >> 16);
    std::memcpy(bytes.data() + i * size,
                size == 4 ? static_cast<const void*>(&bits) : static_cast<const void*>(&half),
                static_cast<size_t>(size));
  }
  return bytes;
}

}  // namespace

Percentiles PercentilesOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto rank = [&](double share) {
    const double index = std::ceil(share * static_cast<double>(values.size())) - 1;
    return values[static_cast<size_t>(std::max(0.0, index))];
  };
  return {rank(0.05), rank(0.50), rank(0.95)};
}

absl::StatusOr<std::unique_ptr<StepBench>> StepBench::Create(const WeightSource& source,
                                                             const StepBenchOptions& options) {
  const ModelConfig& config = source.config();
  RETURN_IF_ERROR(CheckStepBench(config, options));
  std::unique_ptr<StepBench> bench(new StepBench());
  bench->options_ = options;
  bench->random_ = options.seed;
  RunnerOptions runner;
  runner.backend = options.backend;
  runner.storage = options.storage;
  runner.pack_threads = options.pack_threads;
  runner.pack_progress = options.pack_progress;
  runner.draft_model = options.draft_model;
  runner.draft_storage = options.draft_storage;
  runner.exit_threshold = options.exit_threshold;
  DecoderLimits& limits = runner.limits;
  limits.exit_first = options.exit_first;
  limits.exit_every = options.exit_every;
  limits.block_size = options.block_size;
  SetShapeLimits(config, options, &limits);
  limits.route_draws = options.route_draws;
  ASSIGN_OR_RETURN(bench->runner_, MegakernelRunner::Create(source, runner));
  RETURN_IF_ERROR(bench->FillCache(bench->runner_->decoder(), &bench->runner_->executor()));
  if (DraftModel* drafts = bench->runner_->draft_model()) {
    RETURN_IF_ERROR(bench->FillCache(drafts->decoder(), &drafts->executor()));
  }
  return bench;
}

absl::Status StepBench::FillCache(const Decoder& decoder, Executor* executor) {
  const Buffer cache = executor->TensorBuffer(decoder.cache);
  // An odd number of elements, so that heads and layers see different ones.
  const std::vector<uint8_t> values = RandomValues(decoder.storage, (1 << 20) + 1, options_.seed);
  for (int64_t at = 0; at < cache.bytes;) {
    const int64_t part = std::min<int64_t>(cache.bytes - at, static_cast<int64_t>(values.size()));
    RETURN_IF_ERROR(executor->Write(cache, at, values.data(), part));
    at += part;
  }
  return absl::OkStatus();
}

std::vector<TokenId> StepBench::RandomTokens(int count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(NextRandom(&random_) % runner_->info().vocab_size);
  }
  return tokens;
}

absl::Status StepBench::AdmitSlot(uint32_t slot, int cached, int tokens) {
  const std::vector<TokenId> history = RandomTokens(cached + tokens);
  SlotAdmission admission;
  admission.slot = slot;
  admission.tokens = history;
  admission.prompt_length = static_cast<uint32_t>(history.size());
  admission.cached_tokens = static_cast<uint32_t>(cached);
  admission.max_length = static_cast<uint32_t>(runner_->info().max_model_len);
  admission.draft_tokens = static_cast<uint32_t>(options_.drafts);
  RETURN_IF_ERROR(runner_->Admit(admission));
  admitted_ = static_cast<int>(slot) + 1;
  return absl::OkStatus();
}

absl::Status StepBench::Admit(const StepShape& shape) {
  const ModelConfig& config = runner_->decoder().config;
  const int cached = Cached(config, RowTokens(options_), shape.context);
  const int64_t blocks = BlocksOf(config, options_, shape);
  blocks_.assign(static_cast<size_t>(RowsOf(shape)), {});
  tables_written_ = false;
  for (int slot = 0; slot < shape.batch; ++slot) {
    RETURN_IF_ERROR(AdmitSlot(static_cast<uint32_t>(slot), cached, options_.tokens_per_row));
    // Neighbours of a sequence are not neighbours in memory.
    for (int64_t i = 0; i < blocks; ++i) {
      blocks_[static_cast<size_t>(slot)].push_back(static_cast<BlockId>(i * shape.batch + slot));
    }
  }
  if (shape.chunk == 0) return absl::OkStatus();
  RETURN_IF_ERROR(AdmitSlot(static_cast<uint32_t>(shape.batch), shape.chunk_context, shape.chunk));
  const int64_t all = BlocksOfAll(config, options_, shape);
  for (int64_t i = shape.batch * blocks; i < all; ++i) {
    blocks_.back().push_back(static_cast<BlockId>(i));
  }
  return absl::OkStatus();
}

absl::Status StepBench::Refresh(uint32_t slot, int cached, int tokens) {
  const int drafts = runner_->draft_model() != nullptr ? 0 : options_.drafts;
  // One after the other: the order in which arguments are made is the compiler's.
  const std::vector<TokenId> known = RandomTokens(tokens), drafted = RandomTokens(drafts);
  return runner_->SetContext(slot, static_cast<uint32_t>(cached), known, drafted);
}

absl::Status StepBench::SubmitOne(const StepShape& shape, bool refresh) {
  const int cached = Cached(runner_->decoder().config, RowTokens(options_), shape.context);
  const auto batch = static_cast<uint32_t>(shape.batch);
  std::vector<Row> rows;
  std::vector<BlockTableUpdate> updates;
  for (uint32_t slot = 0; slot < batch; ++slot) {
    if (refresh) RETURN_IF_ERROR(Refresh(slot, cached, options_.tokens_per_row));
    if (options_.tokens_per_row == 1) {
      rows.push_back({slot, kDeviceKnows, static_cast<u32>(options_.drafts), kRowSample});
    } else {
      rows.push_back(
          {slot, static_cast<uint32_t>(options_.tokens_per_row), 0, kRowSample | kRowAllLogits});
    }
  }
  if (shape.chunk > 0) {
    if (refresh) RETURN_IF_ERROR(Refresh(batch, shape.chunk_context, shape.chunk));
    rows.push_back({batch, static_cast<u32>(shape.chunk), 0, kRowSample});
  }
  for (const Row& row : rows) {
    if (!tables_written_) updates.push_back({row.slot, 0, blocks_[row.slot]});
  }
  tables_written_ = true;
  const Clock::time_point start = Clock::now();
  RETURN_IF_ERROR(runner_->Submit({step_++, rows, updates}));
  submit_us_.push_back(1e3 * Since(start));
  return absl::OkStatus();
}

absl::Status StepBench::WaitOne(std::vector<double>* ms) {
  const StepOutcome outcome = runner_->Wait();
  ms->push_back(runner_->LastStepMs());
  RETURN_IF_ERROR(outcome.status);
  last_tokens_.clear();
  for (const RowResult& row : outcome.rows) {
    if (row.tokens.size() != 1 + row.accepted) {
      return absl::InternalError(absl::StrCat("slot ", row.slot, " brought ", row.tokens.size(),
                                              " tokens in a step with ", row.accepted,
                                              " right drafts"));
    }
    if (options_.drafts > 0) drafts_.Add(row);
    last_tokens_.push_back(row.tokens[0]);
  }
  return absl::OkStatus();
}

absl::Status StepBench::RunSteps(const StepShape& shape, const Run& run, std::vector<double>* ms) {
  const int depth = static_cast<int>(runner_->info().max_steps_in_flight);
  absl::Status status;
  int submitted = 0;
  ms->clear();
  const auto wait_until = [&](int left) -> absl::Status {
    while (submitted - static_cast<int>(ms->size()) > left) {
      RETURN_IF_ERROR(WaitOne(ms));
      if (run.progress) run.progress(run.done + static_cast<int>(ms->size()));
    }
    return absl::OkStatus();
  };
  for (; submitted < run.steps && status.ok(); submitted += status.ok()) {
    status = wait_until(depth - 1);
    if (status.ok()) status = SubmitOne(shape, submitted % run.refresh == 0);
  }
  if (status.ok()) status = wait_until(0);
  // After an error: nothing may stay in flight.
  while (static_cast<int>(ms->size()) < submitted) status.Update(WaitOne(ms));
  return status;
}

absl::StatusOr<StepTimes> StepBench::Measure(const StepShape& shape, const StepCounts& counts,
                                             const std::function<void(int done)>& progress) {
  if (counts.steps < 1 || counts.warmup < 0) {
    return absl::InvalidArgumentError(absl::StrCat(counts.steps, " steps after ", counts.warmup,
                                                   " of warm-up: at least one is timed"));
  }
  const bool lengths_known = RowTokens(options_) > 1 || shape.chunk > 0;
  Run run;
  run.progress = progress;
  std::vector<double> ms;
  absl::Status status = Admit(shape);
  run.steps = counts.warmup;
  if (status.ok()) status = RunSteps(shape, run, &ms);
  StepTimes times;
  run.done += run.steps;
  if (counts.wall) {
    // As a server runs them: rows continue with the token they got.
    run.steps = std::min(counts.steps, kWallSteps);
    run.refresh = lengths_known ? 1 : kFreeSteps;
    const Clock::time_point start = Clock::now();
    if (status.ok()) status = RunSteps(shape, run, &ms);
    times.wall_ms = Since(start) / run.steps;
    run.done += run.steps;
  }
  run.steps = counts.steps;
  run.refresh = 1;
  submit_us_.clear();
  drafts_ = {};
  if (status.ok()) status = RunSteps(shape, run, &ms);
  for (int slot = 0; slot < admitted_; ++slot) runner_->Release(static_cast<uint32_t>(slot));
  admitted_ = 0;
  RETURN_IF_ERROR(status);
  last_ = shape;
  times.ms = PercentilesOf(ms);
  times.submit_us = PercentilesOf(submit_us_).p50;
  StepShape counted = shape;
  counted.context = Cached(runner_->decoder().config, RowTokens(options_), shape.context);
  times.flops = CountFlops(runner_->decoder().config, counted, RowTokens(options_));
  ASSIGN_OR_RETURN(times.bytes, BytesOf(counted));
  return times;
}

absl::StatusOr<int64_t> StepBench::BytesOf(const StepShape& shape) {
  const ModelConfig& config = runner_->decoder().config;
  int64_t bytes = StepWeightBytes(config, options_.storage) +
                  shape.batch * StepKvBytes(config, options_.storage, shape.context) +
                  StepKvBytes(config, options_.storage, shape.chunk_context);
  if (const DraftModel* drafts = runner_->draft_model()) {
    const ModelConfig& small = drafts->decoder().config;
    const DType storage = drafts->decoder().storage;
    // Of experts, those of one token: at least so many are read.
    const int64_t others = int64_t{small.num_experts - small.experts_per_token} * small.layers;
    bytes += options_.drafts * (StepWeightBytes(small, storage) +
                                shape.batch * StepKvBytes(small, storage, shape.context) -
                                (small.IsMoe() ? others * ExpertBytes(small, storage) : 0));
  }
  if (config.IsMoe()) {
    // Of the last step: which experts others read differs little where tokens are random.
    ASSIGN_OR_RETURN(const Routes routes, LastRoutes());
    const RouteStatistics seen =
        StatisticsOf(routes, config.num_experts, routes.lines, routes.lines);
    bytes -= static_cast<int64_t>((config.num_experts - seen.active) * config.layers *
                                  static_cast<double>(ExpertBytes(config, options_.storage)));
  }
  return bytes;
}

absl::Status StepBench::SetRoutes(const Routes& routes) {
  if (routes.lines != options_.route_draws) {
    return absl::InvalidArgumentError(
        absl::StrCat(routes.lines, " lines of routes; the program takes ", options_.route_draws));
  }
  const Buffer buffer = runner_->executor().TensorBuffer(runner_->decoder().drawn);
  return runner_->executor().Write(buffer, 0, routes.experts.data(),
                                   static_cast<int64_t>(routes.experts.size() * 4));
}

absl::StatusOr<Routes> StepBench::LastRoutes() {
  const Decoder& decoder = runner_->decoder();
  Routes routes{decoder.config.layers,
                last_.batch * RowTokens(options_) + last_.chunk,
                decoder.config.experts_per_token,
                {}};
  const Buffer buffer = runner_->executor().TensorBuffer(decoder.pairs);
  constexpr int64_t kFields = 4;  // RoutedPair: the expert comes first
  std::vector<int32_t> pairs(static_cast<size_t>(routes.lines * routes.top_k * kFields));
  std::vector<int> computed(static_cast<size_t>(routes.layers), routes.lines);
  if (decoder.HasExits()) {
    ASSIGN_OR_RETURN(computed, runner_->TokensOfLayers());
  }
  for (int64_t layer = 0; layer < routes.layers; ++layer) {
    RETURN_IF_ERROR(runner_->executor().Read(buffer, layer * (buffer.bytes / routes.layers),
                                             pairs.data(), static_cast<int64_t>(pairs.size() * 4)));
    const size_t known = static_cast<size_t>(computed[static_cast<size_t>(layer)] * routes.top_k * kFields);
    for (size_t i = 0; i < pairs.size(); i += kFields) routes.experts.push_back(i < known ? pairs[i] : -1);
  }
  return routes;
}

absl::StatusOr<Timeline> StepBench::LastTimeline() {
  const int32_t symbols[2] = {RowsOf(last_), last_.batch * RowTokens(options_) + last_.chunk};
  return ReadTimeline(runner_->executor(), symbols);
}

}  // namespace eventide
