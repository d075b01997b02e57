// speculation_bench MODEL[,DRAFT_MODEL] PROMPTS.jsonl PER_CATEGORY MAX_TOKENS BATCH DRAFTS...: greedy answers
// to the first turns of a file of questions (Spec-Bench, MT-bench: {"category", "turns"}), with every given
// number of drafts (N, or N:adapt), looked up or of the draft model, category by category, in the format of ChatML. 0 is
// plain decoding; all others must give its tokens. CPU seconds count what this process computed, whatever else the machine was doing.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/status.h"
#include "models/load.h"
#include "serve/clock.h"
#include "serve/engine.h"
#include "serve/megakernel_runner.h"
#include "text/gguf_tokenizer.h"

namespace eventide {
namespace {

using Answers = std::map<std::string, std::vector<TokenId>>;
struct Questions {
  std::vector<std::string> order;                                     // of categories
  std::map<std::string, std::vector<std::vector<TokenId>>> prompts;  // by category
};

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
}

absl::StatusOr<Questions> ReadQuestions(const std::string& path, const Tokenizer& tokenizer,
                                        size_t each) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(path + " cannot be read");
  Questions questions;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json question = nlohmann::json::parse(line);
    const std::string category = question.at("category");
    if (!questions.prompts.contains(category)) questions.order.push_back(category);
    auto& prompts = questions.prompts[category];
    if (prompts.size() == each) continue;
    const std::string text = "<|im_start|>user\n" + question.at("turns").at(0).get<std::string>() +
                             "<|im_end|>\n<|im_start|>assistant\n";
    ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.Encode(text, true));
    prompts.push_back(std::move(tokens));
  }
  return questions;
}

struct Measured {
  Answers answers;
  EngineStats stats;
  double seconds = 0, cpu_seconds = 0;
};

absl::StatusOr<Measured> Answer(MegakernelRunner* runner,
                                const std::vector<std::vector<TokenId>>& prompts, const std::string& drafts,
                                uint32_t max_tokens) {
  SteadyClock clock;
  EngineOptions options;
  options.draft_tokens = static_cast<uint32_t>(std::atoi(drafts.c_str()));
  options.adapt_draft_tokens = drafts.ends_with(":adapt");
  options.max_steps_in_flight = 1;
  ASSIGN_OR_RETURN(const auto engine, Engine::Create(runner, &clock, options));
  Measured measured;
  const int64_t start = clock.NowNs();
  const double cpu = CpuSeconds();
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.id = std::to_string(i);
    request.prompt = prompts[i];
    request.sampling.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    RETURN_IF_ERROR(engine->AddRequest(std::move(request), [&](const RequestOutput& output) {
      auto& tokens = measured.answers[output.id];
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
    }));
  }
  while (engine->HasWork()) RETURN_IF_ERROR(engine->Step());
  measured.seconds = 1e-9 * static_cast<double>(clock.NowNs() - start);
  measured.cpu_seconds = CpuSeconds() - cpu;
  measured.stats = engine->stats();
  return measured;
}

absl::Status Run(char** argv, int runs) {
  const std::string models = argv[1];
  const size_t comma = std::min(models.find(','), models.size());
  const std::string model = models.substr(0, comma);
  ASSIGN_OR_RETURN(const auto source, OpenModel(model));
  ASSIGN_OR_RETURN(const auto file, GgufFile::Open(model));
  ASSIGN_OR_RETURN(const auto tokenizer, TokenizerFromGguf(*file));
  const auto each = static_cast<size_t>(std::atoi(argv[3]));
  ASSIGN_OR_RETURN(const Questions questions, ReadQuestions(argv[2], *tokenizer, each));
  RunnerOptions options;
  options.backend.device = "cpu";
  options.limits.max_rows = std::atoi(argv[5]);
  options.limits.max_outputs = options.limits.max_rows * 17;
  options.limits.max_tokens = 512;
  options.limits.max_model_len = 2048;
  std::unique_ptr<WeightSource> draft_model;
  if (comma < models.size()) {
    ASSIGN_OR_RETURN(draft_model, OpenModel(models.substr(comma + 1)));
    options.draft_model = draft_model.get();
  }
  ASSIGN_OR_RETURN(const auto runner, MegakernelRunner::Create(*source, options));
  for (const std::string& category : questions.order) {
    Answers plain;
    for (int i = 0; i < runs; ++i) {
      const std::string drafts = argv[6 + i];
      ASSIGN_OR_RETURN(const Measured m, Answer(runner.get(), questions.prompts.at(category), drafts,
                                                static_cast<uint32_t>(std::atoi(argv[4]))));
      if (i == 0) plain = m.answers;
      if (m.answers != plain) return absl::InternalError(category + ": drafts changed an answer");
      const DraftStats& d = m.stats.drafts;
      std::printf("%-14s drafts %-8s: %4llu tokens, %4llu steps, %5llu drafted, %4llu accepted, "
                  "%.2f tokens/step, %7.2f s, %7.2f CPU s\n",
                  category.c_str(), drafts.c_str(), static_cast<unsigned long long>(m.stats.output_tokens),
                  static_cast<unsigned long long>(m.stats.steps),
                  static_cast<unsigned long long>(d.drafted),
                  static_cast<unsigned long long>(d.accepted), d.tokens_per_step(), m.seconds,
                  m.cpu_seconds);
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace eventide

int main(int argc, char** argv) {
  if (argc < 7) {
    std::fprintf(stderr,
                 "usage: speculation_bench MODEL.gguf[,DRAFT_MODEL] PROMPTS.jsonl PER_CATEGORY "
                 "MAX_TOKENS BATCH DRAFTS...\n");
    return 2;
  }
  const absl::Status status = eventide::Run(argv, argc - 6);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
