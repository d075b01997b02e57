#include "serve/replay.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {
namespace {

// Waiting for an arrival may take minutes; whoever wants to stop is asked this often.
constexpr int64_t kNapNs = 50'000'000;

class Replayer {
 public:
  Replayer(Engine* engine, Clock* clock, const Trace& trace, const PromptSynthesizer& prompts,
           const ReplayOptions& options)
      : engine_(engine),
        clock_(clock),
        trace_(trace),
        prompts_(prompts),
        options_(options),
        start_ns_(clock->NowNs()) {
    result_.requests = trace.requests.size();
  }

  absl::Status Run() {
    const uint64_t total = trace_.requests.size();
    while (next_ < total || engine_->HasWork()) {
      if (options_.stop && options_.stop()) {
        Stop();
        break;
      }
      while (next_ < total && Due(next_)) Add(next_++);
      if (engine_->HasWork()) {
        RETURN_IF_ERROR(engine_->Step());
      } else if (next_ < total && options_.closed_loop == 0) {
        clock_->SleepUntilNs(std::min(ArrivalNs(next_), clock_->NowNs() + kNapNs));
      }
      Report();
    }
    return absl::OkStatus();
  }

  // Runs the chosen requests that have completed again, each alone.
  absl::Status Verify() {
    for (const auto& [index, tokens] : chosen_) {
      if (options_.stop && options_.stop()) break;
      alone_.clear();
      RETURN_IF_ERROR(engine_->AddRequest(RequestOf(index), [this](const RequestOutput& output) {
        alone_.insert(alone_.end(), output.tokens.begin(), output.tokens.end());
        alone_ended_ = output.finish_reason;
      }));
      while (engine_->HasWork()) RETURN_IF_ERROR(engine_->Step());
      ++ended_;
      Report();
      if (alone_ended_ != FinishReason::kStop && alone_ended_ != FinishReason::kLength) continue;
      ++result_.verified;
      if (alone_ == tokens || ++result_.differing > 1) continue;
      const auto same = std::mismatch(alone_.begin(), alone_.end(), tokens.begin(), tokens.end());
      result_.first_difference =
          absl::StrCat("trace-", index, " from token ", same.first - alone_.begin(), " on");
    }
    return absl::OkStatus();
  }

  // Before Verify adds to it.
  void Count() {
    const EngineStats stats = engine_->stats();
    result_.prompt_tokens = stats.prompt_tokens;
    result_.output_tokens = stats.output_tokens;
    result_.seconds = Seconds();
    if (result_.seconds > 0) {
      result_.output_tokens_per_second = static_cast<double>(stats.output_tokens) / result_.seconds;
    }
    result_.ttft_ms = Summary(engine_->ttft_seconds());
    result_.tpot_ms = Summary(engine_->tpot_seconds());
    result_.steps = stats.steps;
    result_.distinct_shapes = stats.distinct_shapes;
    result_.max_batch = stats.max_batch;
    result_.preemptions = stats.preemptions;
    result_.prefix_hit_tokens = stats.prefix_hit_tokens;
    result_.clock = engine_->runner().info().clock;
    result_.step_seconds = stats.step_seconds;
    result_.idle_seconds = stats.idle_seconds;
    result_.speculates = engine_->limits().draft_tokens > 0;
    result_.drafts = stats.drafts;
    result_.kv_blocks_held = stats.kv_blocks_used;
    result_.exits.tokens = stats.computed_tokens;
    // Of a device that was given up nothing can be read, and its requests say why.
    if (auto left = engine_->runner().TokensLeft(); left.ok()) result_.exits.left = *std::move(left);
  }

  const ReplayResult& result() const { return result_; }

 private:
  void Stop() {
    stopping_ = true;
    engine_->CancelAll();
    engine_->Drain();
    result_.cancelled += trace_.requests.size() - next_;
  }

  static Percentiles Summary(const std::vector<double>& seconds) {
    return {1e3 * Percentile(seconds, 50), 1e3 * Percentile(seconds, 90),
            1e3 * Percentile(seconds, 99)};
  }

  double Seconds() const { return 1e-9 * static_cast<double>(clock_->NowNs() - start_ns_); }

  int64_t ArrivalNs(uint64_t index) const {
    const double after =
        static_cast<double>(trace_.requests[index].arrival_ns) * options_.time_scale;
    return start_ns_ + std::llround(after);
  }

  bool Due(uint64_t index) const {
    if (options_.closed_loop > 0) return index - ended_ < options_.closed_loop;
    return ArrivalNs(index) <= clock_->NowNs();
  }

  Request RequestOf(uint64_t index) const {
    Request request;
    request.id = absl::StrCat("trace-", index);
    request.prompt = prompts_.Prompt(trace_, index);
    request.sampling = options_.sampling;
    request.sampling.max_tokens = static_cast<uint32_t>(trace_.requests[index].output_tokens);
    return request;
  }

  // Of n requests, `verify` are chosen, as evenly as can be.
  bool Chosen(uint64_t index) const {
    const uint64_t n = trace_.requests.size(), verify = std::min(options_.verify, n);
    return (index + 1) * verify / n > index * verify / n;
  }

  void Add(uint64_t index) {
    Request request = RequestOf(index);
    if (options_.priorities) request.priority = trace_.requests[index].priority;
    if (options_.closed_loop == 0) request.arrival_ns = ArrivalNs(index);
    RequestOutput refused;
    refused.id = request.id;
    refused.prompt_tokens = request.prompt.size();
    refused.status =
        engine_->AddRequest(std::move(request), [this, index](const RequestOutput& output) {
          if (Chosen(index)) Keep(index, output);
          TakeOutput(output);
        });
    if (refused.status.ok()) return;
    refused.finish_reason = FinishReason::kError;
    TakeOutput(refused);
  }

  // Of those that did not complete, nothing is kept.
  void Keep(uint64_t index, const RequestOutput& output) {
    std::vector<TokenId>& tokens = chosen_[index];
    tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    if (output.finish_reason == FinishReason::kAbort || output.finish_reason == FinishReason::kError) {
      chosen_.erase(index);
    }
  }

  void TakeOutput(const RequestOutput& output) {
    if (options_.on_output) options_.on_output(output);
    if (output.finish_reason == FinishReason::kNone) return;
    ++ended_;
    if (output.finish_reason == FinishReason::kStop ||
        output.finish_reason == FinishReason::kLength) {
      ++result_.completed;
    } else if (stopping_ && output.finish_reason == FinishReason::kAbort) {
      ++result_.cancelled;
    } else {
      Fail(output.status);
    }
  }

  void Fail(const absl::Status& status) {
    if (++result_.failed == 1) result_.first_error = std::string(status.message());
  }

  void Report() const {
    if (!options_.progress) return;
    const EngineStats stats = engine_->stats();
    const uint64_t again = std::min<uint64_t>(options_.verify, trace_.requests.size());
    options_.progress({.total = trace_.requests.size() + again,
                       .ended = ended_,
                       .output_tokens = stats.output_tokens,
                       .running = stats.running,
                       .queued = stats.queued,
                       .seconds = Seconds()});
  }

  Engine* engine_;
  Clock* clock_;
  const Trace& trace_;
  const PromptSynthesizer& prompts_;
  const ReplayOptions& options_;
  int64_t start_ns_;
  uint64_t next_ = 0;  // of the trace
  uint64_t ended_ = 0;
  bool stopping_ = false;
  std::map<uint64_t, std::vector<TokenId>> chosen_;  // tokens of requests that are to be run again
  std::vector<TokenId> alone_;  // those of one that is run again
  FinishReason alone_ended_ = FinishReason::kNone;
  ReplayResult result_;
};

nlohmann::ordered_json ToJson(const Percentiles& p) {
  return {{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
}

}  // namespace

double ReplayResult::idle_share() const {
  const double all = step_seconds + idle_seconds;
  return all > 0 ? idle_seconds / all : 0;
}

void ReplayRecords::Take(const RequestOutput& output) {
  std::vector<TokenId>& tokens = tokens_[output.id];
  tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
  if (output.finish_reason == FinishReason::kNone) return;
  using Json = nlohmann::ordered_json;
  const auto ms = [](bool known, double seconds) { return known ? Json(1e3 * seconds) : Json(); };
  Json json = {{"id", output.id},
               {"tokens", tokens},
               {"finish_reason", FinishReasonName(output.finish_reason)},
               {"ttft_ms", ms(!tokens.empty(), output.ttft_seconds)},
               {"tpot_ms", ms(tokens.size() > 1, output.tpot_seconds)}};
  if (output.finish_reason == FinishReason::kError) {
    json["error"] = std::string(output.status.message());
  }
  tokens_.erase(output.id);
  sink_(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

absl::StatusOr<ReplayResult> Replay(Engine* engine, Clock* clock, const Trace& trace,
                                    const PromptSynthesizer& prompts,
                                    const ReplayOptions& options) {
  // The longest trace times the scale must stay far below 2^63 ns.
  if (!(options.time_scale >= 0 && options.time_scale <= 1e6)) {
    return absl::InvalidArgumentError(
        absl::StrCat("time_scale is ", options.time_scale, "; it must be in 0 … 1000000"));
  }
  const double last_ns =
      trace.requests.empty() ? 0 : static_cast<double>(trace.requests.back().arrival_ns);
  if (last_ns * options.time_scale > 4e18) {
    return absl::InvalidArgumentError(
        absl::StrCat("time_scale ", options.time_scale, " stretches the trace beyond a century"));
  }
  const uint64_t compilations = engine->runner().compilations();
  Replayer replayer(engine, clock, trace, prompts, options);
  absl::Status status = replayer.Run();
  if (status.ok()) {
    replayer.Count();
    status = replayer.Verify();
  }
  if (!status.ok()) {
    engine->CancelAll();  // no callback may outlive this call
    engine->Drain();
    return status;
  }
  ReplayResult result = replayer.result();
  result.compilations = engine->runner().compilations();
  result.compilations_after_ready = result.compilations - compilations;
  return result;
}

nlohmann::ordered_json ToJson(const ReplayResult& r) {
  nlohmann::ordered_json json = {
          {"requests", r.requests},
          {"completed", r.completed},
          {"failed", r.failed},
          {"cancelled", r.cancelled},
          {"prompt_tokens", r.prompt_tokens},
          {"output_tokens", r.output_tokens},
          {"seconds", r.seconds},
          {"output_tokens_per_second", r.output_tokens_per_second},
          {"ttft_ms", ToJson(r.ttft_ms)},
          {"tpot_ms", ToJson(r.tpot_ms)},
          {"steps", r.steps},
          {"distinct_shapes", r.distinct_shapes},
          {"compilations", r.compilations},
          {"compilations_after_ready", r.compilations_after_ready},
          {"max_batch", r.max_batch},
          {"preemptions", r.preemptions},
          {"prefix_hit_tokens", r.prefix_hit_tokens},
          {"kv_blocks_held", r.kv_blocks_held}};
  if (!r.clock.empty()) {
    json["step_seconds"] = r.step_seconds;
    json[absl::StrCat(r.clock, "_idle_seconds")] = r.idle_seconds;
    json[absl::StrCat(r.clock, "_idle_share")] = r.idle_share();
  }
  if (r.verified > 0) json["verified"] = {{"requests", r.verified}, {"differing", r.differing}};
  if (r.speculates) json["speculation"] = ToJson(r.drafts);
  if (!r.exits.left.empty()) json["early_exit"] = ToJson(r.exits);
  return json;
}

}  // namespace eventide
