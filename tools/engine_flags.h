// The flags that every command which runs a model shares, and what they open.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/engine.h"
#include "serve/megakernel_runner.h"
#include "text/tokenizer.h"
#include "tools/command.h"
#include "tools/progress.h"

namespace eventide {

// 0 and "auto" are defaults that OpenEngine resolves.
struct EngineFlags {
  std::string model;
  std::string dtype = "auto";
  std::string device = "auto";
  std::string policy = "auto";
  std::string tokenizer;
  int workers = 0;
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int max_model_len = 0;
  int block_size = 16;
  int64_t num_blocks = 0;
  bool prefix_caching = true;
  std::string scheduling_policy = "fcfs";
  int long_prefill_token_threshold = 0;
  uint64_t seed = 0;
  std::string speculate;  // "ngram:N"
  std::string draft_tokens_schedule = "constant";
  std::string draft_model;
  uint32_t draft_tokens = 4;  // of the draft model
  double exit_threshold = 0;  // 0: early exit is off
  std::string exit_after;     // "F" or "F:K"; empty: SetExitLimits' defaults
  bool json = false;
  bool time_steps = false;  // no flag: of commands that tell what steps take on their device
};

// --max-num-seqs of `generate` and `score` where it is not given; logits that `score` keeps at once: 64 of a large
// vocabulary are 32 MB.
inline constexpr int kOneByOne = 1, kScoreOutputs = 64;

void AddEngineFlags(CLI::App* app, EngineFlags* flags);
void AddSpeculateFlag(CLI::App* app, EngineFlags* flags);
// --speculate-model, --draft-tokens; behind AddSpeculateFlag, for commands that decode.
void AddDraftModelFlags(CLI::App* app, EngineFlags* flags);
void AddExitFlags(CLI::App* app, EngineFlags* flags);
// Drafts of a row; 0 where no flag asks for any. Their form has been checked.
uint32_t DraftTokens(const EngineFlags& flags);
// Where tokens may leave, as the flags say: by default behind half of the layers, and then behind every
// eighth part of them.
void SetExitLimits(const EngineFlags& flags, int layers, DecoderLimits* limits);
// --model, --dtype, --json alone, for commands that run nothing.
void AddModelFlags(CLI::App* app, EngineFlags* flags);
// --device, --workers, --policy, --block-size alone.
void AddDeviceFlags(CLI::App* app, EngineFlags* flags);

struct OpenedModel {
  std::unique_ptr<WeightSource> source;
  DType storage = DType::kF32;
  std::string device;
};
// The checkpoint and the storage type for a device: "auto" is the checkpoint's own; for one that is
// quantised, float32 on hosts and bfloat16 on CUDA.
absl::StatusOr<OpenedModel> OpenFlaggedModel(const EngineFlags& flags, PhaseLog* phases = nullptr);

// What --speculate-model names, for the model's device; no source where the flag is not given. A vocabulary
// other than the model's is a usage error.
absl::StatusOr<OpenedModel> OpenDraftModel(const EngineFlags& flags, const OpenedModel& model,
                                           PhaseLog* phases = nullptr);

// Limits after defaults: what fits the model, the device and this machine's memory. Flags that the
// model or the device cannot take are a usage error. `draft_model` may have no source.
absl::StatusOr<DecoderLimits> ResolveLimits(const EngineFlags& flags, const OpenedModel& model,
                                            const OpenedModel& draft_model = {});

// Of the model, or the file that --tokenizer names. Null where there is none and none was asked
// for.
// Where OpenTokenizer looks; empty: nowhere.
std::string TokenizerPath(const EngineFlags& flags, const ModelConfig& config);
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const EngineFlags& flags,
                                                         const ModelConfig& config);

struct OpenedEngine {
  ModelConfig config;
  DType storage = DType::kF32;
  std::unique_ptr<Tokenizer> tokenizer;  // may be null
  std::unique_ptr<MegakernelRunner> runner;
  SteadyClock clock;
  std::unique_ptr<Engine> engine;
  double load_ms = 0;
};
// `outputs` 0: one per sequence; more where logits of many tokens are read. `phases`: what took how
// long (serve/startup.h).
absl::StatusOr<std::unique_ptr<OpenedEngine>> OpenEngine(const EngineFlags& flags, int outputs = 0,
                                                         PhaseLog* phases = nullptr);

// "1,2, 3" or "1 2 3".
absl::StatusOr<std::vector<TokenId>> ParseTokens(const std::string& text);

}  // namespace eventide
