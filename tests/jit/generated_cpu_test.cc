// The generated source through the host compiler, its workers as threads: the same text that a GPU
// runs must give the plain results here.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "device/arch/cpu.h"
#include "jit/codegen.h"
#include "runtime/memory.h"
#include "tests/jit/toy_graphs.h"

namespace eventide {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCompiler =
    "c++ -std=c++20 -O1 -fPIC -shared -Wall -Wextra -Wno-unused-parameter";

// A program compiled and loaded, with memory for its tensors.
class HostProgram {
 public:
  explicit HostProgram(const Graph& graph, uint32_t policy) {
    absl::StatusOr<Program> lowered = Lower(graph);
    INFO(lowered.status().ToString());
    REQUIRE(lowered.ok());
    program_ = *std::move(lowered);
    Build(Codegen(program_, {"device/arch/cpu.h", CodegenTarget::Entry::kCpu}));

    const absl::StatusOr<MemoryPlan> plan = PlanMemory(program_, {});
    REQUIRE(plan.ok());
    for (const TensorPlace& place : plan->tensors) {
      tensors_.emplace_back(static_cast<size_t>(place.bytes) / 4 + 16);
      addresses_.push_back(reinterpret_cast<uint64_t>(tensors_.back().data()));
    }
    const std::vector<uint32_t> policies(program_.grids.size(), policy);
    absl::StatusOr<std::vector<Node>> nodes = BuildNodes(program_, addresses_, policies);
    REQUIRE(nodes.ok());
    nodes_ = *std::move(nodes);
    const size_t bank_words = static_cast<size_t>(program_.BankBytes()) / 4;
    counters_.resize(2 * bank_words);
    progress_.resize(64 * kEventStrideBytes / 4);
    abort_.resize(AbortBytes(64) / 4);
    record_.nodes = reinterpret_cast<uint64_t>(nodes_.data());
    record_.counters = reinterpret_cast<uint64_t>(counters_.data());
    record_.bank_bytes = bank_words * 4;
    record_.abort = reinterpret_cast<uint64_t>(abort_.data());
    record_.progress = reinterpret_cast<uint64_t>(progress_.data());
    record_.published = reinterpret_cast<uint64_t>(addresses_.data());
  }
  ~HostProgram() {
    if (library_ != nullptr) ::dlclose(library_);
    fs::remove_all(folder_);
  }

  std::vector<uint32_t>& Tensor(const std::string& name) {
    for (size_t i = 0; i < program_.tensors.size(); ++i) {
      if (program_.tensors[i].name == name) return tensors_[i];
    }
    FAIL("no tensor " << name);
    return tensors_[0];
  }

  void Run(int tokens, int workers) {
    StepHeader header = {};
    header.symbols[0] = tokens;
    header.symbol_count = 1;
    header.bank = 0;
    header.timeout_ns = 20'000'000'000;
    std::fill(counters_.begin(), counters_.end(), 0);
    std::vector<std::thread> threads;
    for (int i = 0; i < workers; ++i) {
      threads.emplace_back([&, i] {
        CpuWorker<kCpuPortable> worker;
        worker.step.header = &header;
        worker.step.symbols[0] = tokens;
        worker.step.dims[0] = tokens;  // both graphs have one derived dim: the symbol itself
        worker.worker = static_cast<u32>(i);
        worker.workers = static_cast<u32>(workers);
        worker.program = &record_;
        worker.waiting = {[](void*, u32) { std::this_thread::yield(); }, &Now, nullptr};
        worker.StartStep();
        entry_(&worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
    REQUIRE(*AbortWord(record_) == 0);
  }

 private:
  static u64 Now() {
    return static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

  void Build(const std::string& source) {
    folder_ = (fs::temp_directory_path() / "eventide-generated-XXXXXX").string();
    REQUIRE(::mkdtemp(folder_.data()) != nullptr);
    fs::create_directories(folder_ + "/ops");
    for (const HeaderText& header : ToyHeaders()) {
      if (header.name.rfind("ops/", 0) == 0)
        std::ofstream(folder_ + "/" + header.name) << header.text;
    }
    std::ofstream(folder_ + "/step.cc") << source;
    const std::string library = folder_ + "/step.so";
    const std::string command = absl::StrCat(kCompiler, " -I", folder_, " -I", SourceFile(""), " ",
                                             folder_, "/step.cc -o ", library);
    REQUIRE(std::system(command.c_str()) == 0);
    library_ = ::dlopen(library.c_str(), RTLD_NOW);
    REQUIRE(library_ != nullptr);
    entry_ = reinterpret_cast<void (*)(void*)>(::dlsym(library_, kStepKernel));
    REQUIRE(entry_ != nullptr);
  }

  Program program_;
  std::string folder_;
  void* library_ = nullptr;
  void (*entry_)(void*) = nullptr;
  std::vector<std::vector<uint32_t>> tensors_;
  std::vector<uint64_t> addresses_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> counters_, progress_;
  std::vector<uint32_t> abort_;
  ProgramRecord record_ = {};
};

bool HaveCompiler() {
  if (std::system("c++ --version >/dev/null 2>&1") == 0) return true;
  Skip("no C++ compiler on this machine");
  return false;
}

TEST_CASE("generated layers run on threads and give the plain result") {
  if (!HaveCompiler()) return;
  const std::vector<uint32_t> weights = ToyWeights();
  for (const uint32_t policy : {kPolicyStatic, kPolicyTicket}) {
    HostProgram program(ToyLayersGraph(), policy);
    std::copy(weights.begin(), weights.end(), program.Tensor("weight").begin());
    for (const int tokens : {0, 1, 7, 8, 9, 33, 64}) {
      for (const int workers : {1, 2, 5}) {
        program.Run(tokens, workers);
        const std::vector<uint32_t> wanted = ToyLayersExpected(tokens, weights);
        int wrong = 0;
        for (int layer = 0; layer <= kToyLayers; ++layer) {
          for (int i = 0; i < tokens * kToyColumns; ++i) {
            wrong += program.Tensor("x")[layer * kToyMaxTokens * kToyColumns + i] !=
                     wanted[static_cast<size_t>(layer) * tokens * kToyColumns + i];
          }
        }
        INFO("tokens " << tokens << ", workers " << workers << ", policy " << policy);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("generated device-resident extents run on threads, zero included") {
  if (!HaveCompiler()) return;
  // The seed is a parameter in the node record, so one empty and one usual count are compiled each.
  uint32_t empty = 1;
  while (ToyHash(empty, 0) % kToyLimit != 0) ++empty;
  for (const uint32_t seed : {7u, empty}) {
    HostProgram program(ToyCountGraph(seed), kPolicyTicket);
    for (const int tokens : {1, 8, 9, 64}) {
      for (const int workers : {1, 3}) {
        program.Tensor("total")[0] = 0xeeeeeeee;
        program.Run(tokens, workers);
        INFO("seed " << seed << ", tokens " << tokens << ", workers " << workers);
        CHECK(program.Tensor("total")[0] == ToyCountExpected(seed));
      }
    }
  }
}

}  // namespace
}  // namespace eventide
