// eventide inspect: what a model's program is made of, without running it.
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/dump.h"
#include "core/names.h"
#include "core/status.h"
#include "jit/codegen.h"
#include "jit/kernel.h"
#include "runtime/timeline_report.h"
#include "schedulers/scheduler.h"
#include "serve/backend.h"
#include "tools/engine_flags.h"
#include "tools/flags.h"
#include "tools/gpu_program.h"

namespace eventide {
namespace {

struct InspectFlags {
  EngineFlags engine;
  bool graph = false, dot = false, events = false, schedule = false, source = false,
       kernels = false;
  std::vector<std::string> archs;
  std::string timeline;
};

absl::Status ShowTimeline(const InspectFlags& flags) {
  ASSIGN_OR_RETURN(const TimelineReport report, ReportTimelineFile(flags.timeline));
  return flags.engine.json ? PrintJson(ToJson(report)) : PrintText(ToText(report));
}

absl::Status ShowEvents(const Program& program, bool json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const Names names = {&program.symbols, &program.tensors, 'e'};
  std::string text;
  for (const ProgramEvent& event : program.events) {
    const std::string shape = ShapeText(names, event.shape), target = ExprText(names, event.target);
    absl::StrAppendFormat(&text, "%-14s %s%s\n    target %s\n", event.name, shape,
                          event.gated ? "  gated" : "", target);
    list.push_back({{"name", event.name},
                    {"shape", shape},
                    {"elements", event.elements},
                    {"gated", event.gated},
                    {"target", target}});
  }
  return json ? PrintJson({{"events", list}}) : PrintText(text);
}

// What runs a program on `device`, which need not be here: a GPU as large as an H200, this machine's threads.
MachineShape MachineOf(const std::string& device, int workers) {
  MachineShape machine{.workers = workers, .preemptible = device == "cpu"};
  if (workers > 0) return machine;
  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  machine.workers = device == "cuda" ? 132 : device == "cpu" ? threads : kSimWorkers;
  return machine;
}

absl::Status ShowSchedule(const Program& program, const EngineFlags& flags, const MachineShape& machine) {
  ASSIGN_OR_RETURN(const PolicyPlan plan, Plan(program, machine, flags.policy));
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string text;
  for (size_t g = 0; g < program.grids.size(); ++g) {
    const ProgramGrid& grid = program.grids[g];
    const char* policy = plan.policy[g] == kPolicyTicket ? "ticket" : "static";
    const std::string& section = program.sections[grid.section].name;
    absl::StrAppendFormat(&text, "%-8s %-12s %-7s %s\n", section, grid.name, policy,
                          plan.reason[g]);
    list.push_back({{"section", section},
                    {"grid", grid.name},
                    {"policy", policy},
                    {"reason", plan.reason[g]}});
  }
  return flags.json ? PrintJson({{"workers", machine.workers}, {"grids", list}}) : PrintText(text);
}

absl::Status ShowSource(const Program& program, const GpuArch& arch, const InspectFlags& flags) {
  const std::string source = Codegen(program, TargetOf(arch));
  if (!flags.engine.json) return PrintText(source);
  return PrintJson({{"arch", arch.name}, {"source", source}});
}

// A compiler takes seconds for each: on a terminal a bar tells which one, and text comes as it is
// known.
absl::Status ShowKernels(const Program& program, const std::vector<const GpuArch*>& archs,
                         bool json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  Progress progress;
  for (const GpuArch* arch : archs) {
    progress.Bar("compiling", static_cast<double>(list.size()), static_cast<double>(archs.size()),
                 arch->name);
    KernelOptions options;
    options.use_cache = false;  // what a compiler says now is what is asked for
    ASSIGN_OR_RETURN(const Kernel kernel, BuildKernel(program, *arch, options));
    progress.Clear();
    const KernelUsage& u = kernel.usage;
    list.push_back({{"name", kStepKernel},
                    {"arch", arch->name},
                    {"registers", u.registers},
                    {"spill_bytes", u.spill_bytes},
                    {"stack_bytes", u.stack_bytes},
                    {"shared_bytes", u.shared_bytes},
                    {"code_bytes", u.code_bytes},
                    {"cubin_bytes", kernel.cubin.size()},
                    {"nvrtc_ms", kernel.compile_ms}});
    if (json) continue;
    RETURN_IF_ERROR(PrintText(absl::StrFormat(
        "%-8s %-14s %3d registers, %d spill bytes, %d stack bytes, code %d bytes, cubin %d bytes, NVRTC %.0f ms\n",
        arch->name, kStepKernel, u.registers, u.spill_bytes, u.stack_bytes, u.code_bytes,
        kernel.cubin.size(), kernel.compile_ms)));
  }
  return json ? PrintJson({{"kernels", list}}) : absl::OkStatus();
}

absl::Status RunInspect(InspectFlags& flags) {
  const int chosen =
      flags.graph + flags.dot + flags.events + flags.schedule + flags.source + flags.kernels;
  if (chosen + !flags.timeline.empty() != 1) {
    return UsageError(
        "give one of --graph, --dot, --events, --schedule, --source, --kernels, --timeline FILE");
  }
  const bool compiles = flags.source || flags.kernels;
  if (!flags.archs.empty() && !compiles) {
    return UsageError("--arch is of --source and --kernels");
  }
  const bool on_host = flags.engine.device == "cpu" || flags.engine.device == "sim";
  if (compiles && on_host) return UsageError("--source and --kernels are of GPUs, which need not be here: leave --device out");
  if (flags.source && flags.archs.size() > 1) return UsageError("--source shows one --arch");
  ASSIGN_OR_RETURN(auto archs, ArchsNamed(flags.archs));
  if (archs.empty()) {
    for (const GpuArch& arch : GpuArchs()) archs.push_back(&arch);
  }
  if (!flags.timeline.empty()) return ShowTimeline(flags);
  if (flags.engine.model.empty()) return UsageError("--model is required");
  ASSIGN_OR_RETURN(const OpenedModel model,
                   on_host ? OpenFlaggedModel(flags.engine) : OpenModelForGpu(flags.engine));
  ASSIGN_OR_RETURN(const DecoderLimits limits, ResolveLimits(flags.engine, model));
  ASSIGN_OR_RETURN(const Decoder decoder,
                   BuildDecoder(model.source->config(), model.storage, limits));
  if (flags.graph) {
    const std::string text = DumpText(decoder.graph);
    return flags.engine.json ? PrintJson({{"graph", text}}) : PrintText(text);
  }
  ASSIGN_OR_RETURN(const Program program, Lower(decoder.graph, DecoderVerifyOptions(decoder)));
  if (flags.dot) {
    const std::string dot = DumpDot(program);
    return flags.engine.json ? PrintJson({{"dot", dot}}) : PrintText(dot);
  }
  if (flags.events) return ShowEvents(program, flags.engine.json);
  if (flags.schedule) {
    return ShowSchedule(program, flags.engine, MachineOf(model.device, flags.engine.workers));
  }
  return flags.source ? ShowSource(program, *archs.front(), flags)
                      : ShowKernels(program, archs, flags.engine.json);
}

}  // namespace

CommandBody AddInspect(CLI::App* app) {
  auto flags = std::make_shared<InspectFlags>();
  AddEngineFlags(app, &flags->engine);
  app->get_option("--model")->required(false);  // a timeline needs none
  app->add_flag("--graph", flags->graph,
                "Symbols, tensors, events and task grids with their edges");
  app->add_flag("--dot", flags->dot, "The program as Graphviz text");
  app->add_flag("--events", flags->events, "Event tensors and the targets derived for them");
  app->add_flag("--schedule", flags->schedule,
                "The policy of each task grid, and why (of a GPU with 132 workers unless --workers says)");
  app->add_flag("--source", flags->source, "The generated CUDA C++ (of the first --arch)");
  app->add_flag("--kernels", flags->kernels, "Compiles and shows registers, spills and sizes");
  app->add_option("--arch", flags->archs, "sm_90a, ...; default: all that Eventide knows")
      ->check(NotEmpty());
  app->add_option(
         "--timeline", flags->timeline,
         "Where the time of the step in this file went (bench decode --timeline writes it)")
      ->check(NotEmpty());
  app->footer(
      "The program is the one that a GPU runs, with its limits, and none need be here; with --device cpu or sim it\n"
      "is theirs.\n"
      "Examples:\n"
      "  eventide inspect --model random:test-llama --events\n"
      "  eventide inspect --timeline step.json\n"
      "  eventide inspect --model random:llama-3.2-1b --kernels --arch sm_90a --json");
  return [=] { return RunInspect(*flags); };
}

}  // namespace eventide
