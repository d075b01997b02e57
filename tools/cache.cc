// eventide cache: the folder of compiled kernels.
#include "jit/cache.h"

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "jit/kernel.h"
#include "models/decoder.h"
#include "serve/draft_model.h"
#include "tools/flags.h"
#include "tools/gpu_program.h"

namespace eventide {
namespace {

struct CacheFlags {
  bool json = false;
  EngineFlags engine;
  std::vector<std::string> archs;
};

absl::StatusOr<KernelCache> OpenCache(std::string* folder) {
  *folder = KernelCache::DefaultFolder();
  if (folder->empty()) {
    return absl::FailedPreconditionError(
        "there is no cache: none of EVENTIDE_CACHE_DIR, XDG_CACHE_HOME and HOME is set");
  }
  return KernelCache(*folder);
}

std::string IdleText(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  return seconds < 172800 ? absl::StrFormat("%.0f h", seconds / 3600)
                          : absl::StrFormat("%.0f days", seconds / 86400);
}

absl::Status ListCache(const CacheFlags& flags) {
  std::string folder;
  ASSIGN_OR_RETURN(const KernelCache cache, OpenCache(&folder));
  ASSIGN_OR_RETURN(const std::vector<CacheItem> items, cache.List());
  int64_t bytes = 0;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text;
  for (const CacheItem& item : items) {
    bytes += item.bytes;
    list.push_back({{"key", item.key},
                    {"bytes", item.bytes},
                    {"idle_seconds", item.idle_seconds},
                    {"damaged", item.damaged}});
    absl::StrAppendFormat(&text, "%s %9d bytes, used %s ago%s\n", item.key.substr(0, 16),
                          item.bytes, IdleText(item.idle_seconds),
                          item.damaged ? ", damaged: will be made again when it is needed" : "");
  }
  if (flags.json) {
    return PrintJson({{"folder", folder},
                      {"entries", list},
                      {"bytes", bytes},
                      {"max_bytes", KernelCache::kMaxBytes}});
  }
  absl::StrAppendFormat(&text, "%d kernels, %.1f of %d MiB in %s\n", items.size(),
                        static_cast<double>(bytes) / (1 << 20), KernelCache::kMaxBytes >> 20,
                        folder);
  return PrintText(text);
}

absl::Status ClearCache(const CacheFlags& flags) {
  std::string folder;
  ASSIGN_OR_RETURN(const KernelCache cache, OpenCache(&folder));
  ASSIGN_OR_RETURN(const int removed, cache.Clear());
  if (flags.json) return PrintJson({{"folder", folder}, {"removed", removed}});
  return PrintText(absl::StrFormat("%d files removed from %s\n", removed, folder));
}

// What a start builds its graph for, by command: --max-num-seqs where it is not given, and outputs.
struct Start {
  const char* command;
  int max_num_seqs, outputs;
};
constexpr Start kStarts[] = {{"replay", 0, 0}, {"generate", kOneByOne, 0}, {"score", kOneByOne, kScoreOutputs}};

// The programs that a command compiles: the model's, and its draft model's.
absl::StatusOr<std::vector<Program>> ProgramsOf(const Start& start, EngineFlags flags, const OpenedModel& model,
                                                const OpenedModel& draft) {
  if (flags.max_num_seqs == 0) flags.max_num_seqs = start.max_num_seqs;
  ASSIGN_OR_RETURN(DecoderLimits limits, ResolveLimits(flags, model, draft));
  limits.max_outputs = std::max(limits.max_outputs, start.outputs);
  std::vector<Program> programs;
  const auto add = [&](const OpenedModel& opened, const DecoderLimits& of) -> absl::Status {
    ASSIGN_OR_RETURN(const Decoder decoder, BuildDecoder(opened.source->config(), opened.storage, of));
    ASSIGN_OR_RETURN(Program program, Lower(decoder.graph, DecoderVerifyOptions(decoder)));
    programs.push_back(std::move(program));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(add(model, limits));
  if (draft.source != nullptr) {
    RETURN_IF_ERROR(add(draft, DraftModel::LimitsBeside(limits, draft.source->config())));
  }
  return programs;
}

// As a run with these flags compiles them (serve/backend.cc), so that the run finds them.
absl::Status AddKernels(CacheFlags flags) {
  std::string folder;
  RETURN_IF_ERROR(OpenCache(&folder).status());
  ASSIGN_OR_RETURN(const auto archs, ArchsNamed(flags.archs));
  ASSIGN_OR_RETURN(const OpenedModel model, OpenModelForGpu(flags.engine));
  ASSIGN_OR_RETURN(const OpenedModel draft, OpenDraftModel(flags.engine, model));
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text;
  Progress progress;
  double done = 0;
  for (const Start& start : kStarts) {
    ASSIGN_OR_RETURN(const std::vector<Program> programs, ProgramsOf(start, flags.engine, model, draft));
    for (const GpuArch* arch : archs) {
      for (size_t i = 0; i < programs.size(); ++i) {
        const char* of = i == 0 ? "model" : "draft model";
        progress.Bar("compiling", done++, static_cast<double>(std::size(kStarts) * archs.size() * programs.size()),
                     absl::StrCat(arch->name, " ", start.command));
        KernelOptions options;
        options.packer = true;
        options.cache_folder = folder;
        options.must_keep = true;
        ASSIGN_OR_RETURN(const Kernel kernel, BuildKernel(programs[i], *arch, options));
        progress.Clear();
        if (!kernel.kept) {
          return absl::UnavailableError(absl::StrCat("the kernel for ", arch->name,
                                                     " was compiled and could not be kept: ", kernel.cache_note));
        }
        list.push_back({{"arch", arch->name},
                        {"command", start.command},
                        {"of", of},
                        {"compiled", kernel.compiled},
                        {"cubin_bytes", kernel.cubin.size()},
                        {"ms", kernel.compile_ms}});
        absl::StrAppendFormat(&text, "%-8s %-8s %-11s %s, cubin %d bytes, %.0f ms\n", arch->name, start.command, of,
                              kernel.compiled ? "compiled" : "was there", kernel.cubin.size(), kernel.compile_ms);
      }
    }
  }
  if (flags.json) return PrintJson({{"folder", folder}, {"kernels", list}});
  return PrintText(absl::StrCat(text, "in ", folder, "\n"));
}

}  // namespace

CommandBody AddCache(CLI::App* app) {
  auto flags = std::make_shared<CacheFlags>();
  app->require_subcommand(1);
  CLI::App* list = app->add_subcommand("list", "Its kernels, those used last first");
  CLI::App* clear = app->add_subcommand("clear", "Removes them all; running programs keep theirs");
  for (CLI::App* sub : {list, clear}) {
    sub->add_flag("--json", flags->json, "One JSON object on stdout instead of text");
  }
  CLI::App* add = app->add_subcommand("add", "Compiles a model's kernels for a GPU that need not be here");
  AddEngineFlags(add, &flags->engine);
  AddDraftModelFlags(add, &flags->engine);
  add->add_option("--arch", flags->archs, "sm_90a (H100, H200), sm_100a (B200), ...; several times for several")
      ->required()
      ->check(NotEmpty());
  add->footer(
      "replay, generate and score with the same model and flags on a machine with the same NVRTC\n"
      "then compile nothing (benches do: their limits are their own): for images that are built\n"
      "where there is no GPU. Take the folder along, or build where EVENTIDE_CACHE_DIR will be.\n"
      "Examples:\n"
      "  eventide cache add --model random:llama-3.2-1b --arch sm_90a\n"
      "  eventide cache add --model DIR --arch sm_90a --arch sm_100a --max-num-seqs 64");
  app->footer(
      "The folder is $EVENTIDE_CACHE_DIR, else $XDG_CACHE_HOME/eventide, else ~/.cache/eventide.\n"
      "Examples:\n"
      "  eventide cache list\n"
      "  eventide cache add --model random:llama-3.2-1b --arch sm_90a\n"
      "  eventide cache clear");
  return [=] {
    if (add->parsed()) {
      flags->json = flags->engine.json;
      return AddKernels(*flags);
    }
    return list->parsed() ? ListCache(*flags) : ClearCache(*flags);
  };
}

}  // namespace eventide
