#include "tools/engine_flags.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/status.h"
#include "formats/gguf.h"
#include "models/load.h"
#include "runtime/host_memory.h"
#include "serve/tokenizer_sink.h"
#include "text/gguf_tokenizer.h"
#include "text/hf_tokenizer.h"
#include "text/llama2c_tokenizer.h"
#include "tools/flags.h"

namespace eventide {
namespace {

constexpr int kMaxWorkers = 1024, kMaxSimWorkers = 64;  // of the executors
constexpr char kModelHelp[] =
    "Hugging Face folder, .gguf file, llama2.c .bin file, or random:PRESET[@SEED]";

constexpr char kNgram[] = "ngram:";
constexpr int kMostStepDrafts = 1024;  // whose logits have room

std::string CheckSpeculate(const std::string& text) {
  if (absl::StartsWith(text, kNgram)) {
    std::string number = text.substr(sizeof(kNgram) - 1);
    if (WholeNumber(1, kMaxDraftTokens)(number).empty()) return "";
  }
  return absl::StrCat("'", text, "': give ngram:N, with N from 1 to ", kMaxDraftTokens);
}

std::string CheckExitAfter(const std::string& text) {
  const std::vector<std::string> numbers = absl::StrSplit(text, ':');
  bool whole = numbers.size() <= 2;
  for (std::string number : numbers) whole = whole && WholeNumber(1, kMaxLayers)(number).empty();
  if (whole) return "";
  return absl::StrCat("'", text, "': give F or F:K, numbers of layers from 1 to ", kMaxLayers);
}

absl::StatusOr<DType> ResolveStorage(const EngineFlags& flags, const WeightSource& source,
                                     const std::string& device) {
  if (flags.dtype != "auto") {
    const auto type = DTypeFromName(flags.dtype);
    if (!type || !IsWeightDType(*type)) {
      return UsageError(
          absl::StrCat("--dtype ", flags.dtype, ": there are auto, bfloat16, float16, float32"));
    }
    if (*type == DType::kF32 && device == "cuda") {
      return UsageError(
          "--dtype float32 runs on --device cpu and sim; on cuda choose bfloat16 or float16");
    }
    return *type;
  }
  const DType stated = source.config().dtype;
  return device == "cuda" && stated == DType::kF32 ? DType::kBF16 : stated;
}

std::string FileEnding(const std::string& path) {
  return std::filesystem::path(path).extension().string();
}

// llama2.c keeps the tokenizer beside the model: tok512.bin for a vocabulary of 512, or
// tokenizer.bin.
std::string Llama2cTokenizerBeside(const std::string& model, int vocab) {
  const std::filesystem::path folder = std::filesystem::path(model).parent_path();
  for (const std::string& name :
       {absl::StrCat("tok", vocab, ".bin"), std::string("tokenizer.bin")}) {
    if (std::filesystem::exists(folder / name)) return (folder / name).string();
  }
  return "";
}

// A preset is named on the command line, a file's faults are the file's.
absl::StatusOr<std::unique_ptr<WeightSource>> OpenNamed(const std::string& name, PhaseLog* phases) {
  auto source = OpenModel(name, phases);
  if (!source.ok() && absl::StartsWith(name, "random:")) return AsUsageError(source.status());
  return source;
}

}  // namespace

void AddModelFlags(CLI::App* app, EngineFlags* flags) {
  app->add_option("--model,-m", flags->model, kModelHelp)->required()->check(NotEmpty());
  app->add_option(
         "--dtype", flags->dtype,
         "Storage of weights and KV: auto (the checkpoint's; quantised ones: float32, on cuda "
         "bfloat16), bfloat16, float16, float32")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16", "float32"}));
  app->add_flag("--json", flags->json, "One JSON object on stdout instead of text");
}

void AddSpeculateFlag(CLI::App* app, EngineFlags* flags) {
  app->add_option("--speculate", flags->speculate,
                  "ngram:N: verify up to N tokens at once that followed the last ones before; the "
                  "output stays the same")
      ->check(CheckSpeculate, "");
}

void AddDraftModelFlags(CLI::App* app, EngineFlags* flags) {
  CLI::Option* model =
      app->add_option("--speculate-model", flags->draft_model,
                      "A smaller model of the same vocabulary (as --model): its drafts are "
                      "verified at once; the output stays the same")
          ->check(NotEmpty())
          ->excludes(app->get_option("--speculate"));
  app->add_option("--draft-tokens", flags->draft_tokens,
                  "Of --speculate-model, a row and step at most")
      ->check(WholeNumber(1, kMaxDraftTokens))
      ->needs(model);
}

uint32_t DraftTokens(const EngineFlags& flags) {
  uint32_t drafts = 0;
  if (!flags.draft_model.empty()) return flags.draft_tokens;
  if (flags.speculate.empty()) return 0;
  EVT_CHECK(absl::SimpleAtoi(flags.speculate.substr(sizeof(kNgram) - 1), &drafts));
  return drafts;
}

void AddExitFlags(CLI::App* app, EngineFlags* flags) {
  app->add_option("--exit-threshold", flags->exit_threshold,
                  "Early exit: tokens leave behind a layer where their state has at least this cosine with "
                  "their state at the place before; 0: off")
      ->check(RealNumber(0, 1));
  app->add_option("--exit-after", flags->exit_after,
                  "F:K, where tokens may leave: behind F layers, then behind every K more (default: half of "
                  "the layers, then every eighth part)")
      ->check(CheckExitAfter, "");
}

void SetExitLimits(const EngineFlags& flags, int layers, DecoderLimits* limits) {
  if (flags.exit_threshold <= 0) return;
  limits->exit_first = std::max(1, layers / 2);
  limits->exit_every = std::max(1, layers / 8);
  if (flags.exit_after.empty()) return;
  const std::vector<std::string> numbers = absl::StrSplit(flags.exit_after, ':');
  limits->exit_every = 1;
  EVT_CHECK(absl::SimpleAtoi(numbers[0], &limits->exit_first));
  EVT_CHECK(numbers.size() == 1 || absl::SimpleAtoi(numbers[1], &limits->exit_every));
}

void AddDeviceFlags(CLI::App* app, EngineFlags* flags) {
  app->add_option("--device", flags->device, "auto (cuda where there is one), cpu, sim, cuda")
      ->check(CLI::IsMember({"auto", "cpu", "sim", "cuda"}));
  app->add_option("--workers", flags->workers, "Workers; 0: all of the machine")
      ->check(WholeNumber(0, kMaxWorkers));
  app->add_option("--policy", flags->policy, "How tasks reach workers: auto, static, ticket")
      ->check(CLI::IsMember({"auto", "static", "ticket"}));
  app->add_option("--block-size,--page-size", flags->block_size, "Tokens of a KV block")
      ->check(BlockSize());
}

void AddEngineFlags(CLI::App* app, EngineFlags* flags) {
  AddModelFlags(app, flags);
  AddDeviceFlags(app, flags);
  app->add_option("--max-num-seqs", flags->max_num_seqs,
                  "Sequences served at once; 0: 256, less where KV memory is short; generate and score: 1")
      ->check(WholeNumber(0, 1024));
  app->add_option("--max-num-batched-tokens", flags->max_num_batched_tokens,
                  "Tokens of one step; 0: 512 on cpu and sim, 2048 on cuda")
      ->check(WholeNumber(0, 1 << 20));
  app->add_option("--max-model-len", flags->max_model_len,
                  "Tokens of one sequence; 0: the model's, at most 8192")
      ->check(WholeNumber(0, 1 << 24));
  app->add_option("--num-blocks,--num-pages", flags->num_blocks,
                  "KV blocks; 0: for all sequences at full length, at most a quarter of memory, on cuda 16 GiB")
      ->check(WholeNumber(0, INT32_MAX));
  app->add_flag("--enable-prefix-caching,!--no-enable-prefix-caching,!--no-prefix-cache",
                flags->prefix_caching,
                "Requests that begin with the same tokens share KV blocks (the default)");
  app->add_option("--scheduling-policy", flags->scheduling_policy,
                  "fcfs: in order of arrival; priority: lower priority values first")
      ->check(CLI::IsMember({"fcfs", "priority"}));
  app->add_option("--long-prefill-token-threshold", flags->long_prefill_token_threshold,
                  "Tokens of one prompt in a step at most; 0: only the step's tokens limit it")
      ->check(WholeNumber(0, 1 << 20));
  AddSpeculateFlag(app, flags);
  app->add_option("--draft-tokens-schedule", flags->draft_tokens_schedule,
                  "Of --speculate: constant: up to N drafts in every step; heuristic: a row's up to N, two more where "
                  "all of its last ones were right, else one fewer")
      ->check(CLI::IsMember({"constant", "heuristic"}))
      ->needs("--speculate");
  AddExitFlags(app, flags);
  app->add_option("--tokenizer", flags->tokenizer,
                  "tokenizer.json (or its folder), .gguf or llama2.c .bin; default: the model's")
      ->check(NotEmpty());
  app->add_option("--seed", flags->seed, "Of sampling, where a request brings none")
      ->check(WholeNumber(0, UINT64_MAX));
}

absl::StatusOr<OpenedModel> OpenFlaggedModel(const EngineFlags& flags, PhaseLog* phases) {
  OpenedModel model;
  ASSIGN_OR_RETURN(model.device,
                   InPhase(phases, "device", [&] { return ResolveDevice(flags.device); }));
  ASSIGN_OR_RETURN(model.source, OpenNamed(flags.model, phases));
  ASSIGN_OR_RETURN(model.storage, ResolveStorage(flags, *model.source, model.device));
  return model;
}

absl::StatusOr<OpenedModel> OpenDraftModel(const EngineFlags& flags, const OpenedModel& model,
                                           PhaseLog* phases) {
  OpenedModel draft;
  if (flags.draft_model.empty()) return draft;
  draft.device = model.device;
  ASSIGN_OR_RETURN(draft.source, OpenNamed(flags.draft_model, phases));
  RETURN_IF_ERROR(
      AsUsageError(DraftModel::CheckFits(model.source->config(), draft.source->config())));
  ASSIGN_OR_RETURN(draft.storage, ResolveStorage(flags, *draft.source, model.device));
  return draft;
}

absl::StatusOr<DecoderLimits> ResolveLimits(const EngineFlags& flags, const OpenedModel& model,
                                            const OpenedModel& draft_model) {
  const ModelConfig& config = model.source->config();
  const bool cuda = model.device == "cuda";
  DecoderLimits limits;
  limits.block_size = flags.block_size;
  limits.max_model_len =
      flags.max_model_len > 0 ? flags.max_model_len : std::min(config.max_positions, 8192);
  limits.max_rows = flags.max_num_seqs > 0 ? flags.max_num_seqs : 256;
  limits.max_tokens = flags.max_num_batched_tokens > 0 ? flags.max_num_batched_tokens
                      : cuda                           ? 2048
                                                       : 512;
  if (flags.max_num_seqs == 0) limits.max_rows = std::min(limits.max_rows, limits.max_tokens);
  const int64_t drafts = int64_t{limits.max_rows} * DraftTokens(flags);
  limits.max_outputs =
      limits.max_rows + static_cast<int>(std::min<int64_t>(
                            {drafts, limits.max_tokens, kMostStepDrafts}));
  if (flags.max_model_len == 1) {
    return UsageError("--max-model-len 1 leaves no room for an answer; give at least 2");
  }
  if (model.device == "sim" && flags.workers > kMaxSimWorkers) {
    return UsageError(
        absl::StrCat("--workers ", flags.workers, ": the simulator runs at most ", kMaxSimWorkers));
  }
  const int64_t per_sequence = (limits.max_model_len + flags.block_size - 1) / flags.block_size;
  limits.num_blocks = flags.num_blocks;
  if (limits.num_blocks == 0) {
    const int64_t bytes = cuda ? int64_t{16} << 30 : MachineMemoryBytes() / 4;
    int64_t block_bytes = KvBlockBytes(config, model.storage, flags.block_size);
    if (draft_model.source != nullptr) {
      block_bytes += KvBlockBytes(draft_model.source->config(), draft_model.storage, flags.block_size);
    }
    const int64_t fit = bytes / block_bytes;
    // At least one sequence of full length, whatever the memory: less could serve nothing.
    limits.num_blocks = std::clamp(fit, per_sequence, per_sequence * limits.max_rows);
  }
  if (!flags.exit_after.empty() && flags.exit_threshold <= 0) {
    return UsageError("--exit-after says where tokens may leave: it goes with --exit-threshold");
  }
  SetExitLimits(flags, config.layers, &limits);
  RETURN_IF_ERROR(AsUsageError(CheckDecoderLimits(config, limits)));
  if (!flags.draft_model.empty() && limits.max_tokens + limits.max_rows > kMostStepTokens) {
    return UsageError(absl::StrCat("with --speculate-model --max-num-batched-tokens and --max-num-seqs must not exceed ",
                                   kMostStepTokens, " together: a draft model takes a token more of each sequence"));
  }
  return limits;
}

std::string TokenizerPath(const EngineFlags& flags, const ModelConfig& config) {
  if (!flags.tokenizer.empty()) return flags.tokenizer;
  if (absl::StartsWith(flags.model, "random:")) return "";
  if (FileEnding(flags.model) == ".bin") return Llama2cTokenizerBeside(flags.model, config.vocab);
  std::error_code error;
  const std::filesystem::path model = flags.model;
  const bool folder = std::filesystem::is_directory(model, error);
  if (folder && !std::filesystem::exists(model / "tokenizer.json", error)) return "";
  return flags.model;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const EngineFlags& flags,
                                                         const ModelConfig& config) {
  const std::string path = TokenizerPath(flags, config);
  if (path.empty()) return nullptr;
  if (FileEnding(path) == ".gguf") {
    ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
    return TokenizerFromGguf(*file);
  }
  if (FileEnding(path) == ".bin") return TokenizerFromLlama2c(path, config.vocab);
  return TokenizerFromHfPath(path);
}

namespace {

// Models of one vocabulary's size may still mean other tokens by its ids.
absl::Status CheckSameTokens(const EngineFlags& flags, const Tokenizer* tokenizer,
                             const ModelConfig& draft_config) {
  EngineFlags draft_flags = flags;
  draft_flags.model = flags.draft_model;
  draft_flags.tokenizer.clear();
  ASSIGN_OR_RETURN(const auto other, OpenTokenizer(draft_flags, draft_config));
  if (tokenizer == nullptr || other == nullptr) return absl::OkStatus();
  const int ids = std::min(tokenizer->vocab_size(), other->vocab_size());
  for (int32_t id = 0; id < ids; ++id) {
    if (tokenizer->TokenBytes(id) == other->TokenBytes(id)) continue;
    return UsageError(absl::StrCat(
        "--speculate-model ", flags.draft_model, ": its token ", id, " is '",
        absl::CHexEscape(other->TokenBytes(id)), "', the model's is '",
        absl::CHexEscape(tokenizer->TokenBytes(id)),
        "': drafts are token ids, so both must mean the same; choose a draft model of the same family"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OpenedEngine>> OpenEngine(const EngineFlags& flags, int outputs,
                                                         PhaseLog* phases) {
  const auto start = std::chrono::steady_clock::now();
  auto opened = std::make_unique<OpenedEngine>();
  ASSIGN_OR_RETURN(OpenedModel model, OpenFlaggedModel(flags, phases));
  opened->config = model.source->config();
  opened->storage = model.storage;
  if (model.storage == DType::kF16 && opened->config.dtype != DType::kF16 &&
      !absl::StartsWith(flags.model, "random:")) {
    std::fprintf(
        stderr,
        "eventide: float16 ends at 65,504, and this checkpoint was not made for it: should "
        "answers be nonsense, choose --dtype bfloat16\n");
  }
  ASSIGN_OR_RETURN(opened->tokenizer, InPhase(phases, "tokenizer", [&] {
                     return OpenTokenizer(flags, opened->config);
                   }));
  ASSIGN_OR_RETURN(OpenedModel draft_model, OpenDraftModel(flags, model, phases));
  if (draft_model.source != nullptr) {
    RETURN_IF_ERROR(InPhase(phases, "tokenizer", [&] {
      return CheckSameTokens(flags, opened->tokenizer.get(), draft_model.source->config());
    }));
  }
  RunnerOptions options;
  options.draft_model = draft_model.source.get();
  options.draft_storage = draft_model.storage;
  options.backend = {model.device, flags.workers, flags.policy, flags.seed};
  options.backend.time_steps = flags.time_steps;
  options.backend.phases = phases;
  options.storage = model.storage;
  options.exit_threshold = static_cast<float>(flags.exit_threshold);
  ASSIGN_OR_RETURN(options.limits, ResolveLimits(flags, model, draft_model));
  options.limits.max_outputs = std::max(options.limits.max_outputs, outputs);
  options.pack_threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2u, 64u));
  Progress progress;
  options.pack_progress = [&](int64_t done, int64_t total) {
    progress.Bar("loading weights", static_cast<double>(done), static_cast<double>(total),
                 absl::StrCat(total >> 20, " MiB"));
  };
  ASSIGN_OR_RETURN(opened->runner, MegakernelRunner::Create(*model.source, options));
  progress.Clear();
  {
    const PhaseSpan span(phases, "weights_map");
    model.source.reset();  // gigabytes take their time to be unmapped
    draft_model.source.reset();
  }
  const PhaseSpan span(phases, "kv_alloc");
  EngineOptions engine;
  engine.seed = flags.seed;
  engine.draft_tokens = DraftTokens(flags);
  engine.adapt_draft_tokens = flags.draft_tokens_schedule == "heuristic";
  engine.prefix_cache.enabled = flags.prefix_caching;
  engine.scheduling_policy =
      flags.scheduling_policy == "priority" ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  engine.max_prefill_chunk = static_cast<uint32_t>(flags.long_prefill_token_threshold);
  // On a host a step has run when Submit returns: a second one in flight would only hold back what
  // the first one gave.
  if (model.device != "cuda") engine.max_steps_in_flight = 1;
  if (opened->tokenizer != nullptr) engine.text_sink = TokenizerSinks(opened->tokenizer.get());
  ASSIGN_OR_RETURN(opened->engine,
                   Engine::Create(opened->runner.get(), &opened->clock, std::move(engine)));
  opened->load_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return opened;
}

absl::StatusOr<std::vector<TokenId>> ParseTokens(const std::string& text) {
  std::vector<TokenId> tokens;
  for (absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(", \t\n"), absl::SkipEmpty())) {
    TokenId token = 0;
    if (!absl::SimpleAtoi(part, &token) || token < 0) {
      return UsageError(absl::StrCat("'", part, "' is not a token id; give numbers such as 1,2,3"));
    }
    tokens.push_back(token);
  }
  if (tokens.empty()) return UsageError("--tokens names no token");
  return tokens;
}

}  // namespace eventide
