// Runs a small graph of ops on every host backend, with guard words behind each tensor and poison
// (all bits set: NaN as a float) in everything that an op must write itself.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/program.h"
#include "device/dtype.h"
#include "runtime/cpu_executor.h"
#include "runtime/cuda_executor.h"
#include "runtime/ops.h"
#include "runtime/sim_executor.h"
#include "tests/support/test.h"

namespace eventide {

template <class E>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<E, BF16>) return DType::kBF16;
  if constexpr (std::is_same_v<E, F16>) return DType::kF16;
  if constexpr (std::is_same_v<E, float>) return DType::kF32;
  if constexpr (std::is_same_v<E, u8>) return DType::kU8;
  if constexpr (std::is_same_v<E, u64>) return DType::kU64;
  return DType::kI32;
}

// Relative size of one rounding to the storage type.
template <class T>
constexpr double Epsilon() {
  if constexpr (std::is_same_v<T, BF16>) return 0x1p-8;
  if constexpr (std::is_same_v<T, F16>) return 0x1p-11;
  return 0x1p-24;
}

inline constexpr int kSimBackend = -1, kCudaBackend = -2;

// One way to run a program: CPU threads with one instruction set, the simulator or a GPU.
struct OpBackend {
  std::string name;
  int isa = kSimBackend;  // or kCudaBackend, or a CpuIsa
  int workers = 1;
  std::string policy = "static";
  const CpuOpTable* ops = nullptr;  // on CPU threads: others than those of the instruction set

  absl::StatusOr<std::unique_ptr<Executor>> Make(Program program) const {
    if (isa == kCudaBackend) {
      CudaExecutorOptions options;
      options.workers = workers;
      options.policy = policy;
      ASSIGN_OR_RETURN(std::unique_ptr<CudaExecutor> executor,
                       MakeCudaExecutor(std::move(program), options));
      return executor;
    }
    if (isa == kSimBackend) {
      SimExecutorOptions options;
      options.workers = workers;
      options.policy = policy;
      return MakeSimBackend(std::move(program), options);
    }
    CpuExecutorOptions options;
    options.isa = isa;
    options.workers = workers;
    options.policy = policy;
    options.ops = ops;
    return MakeCpuExecutor(std::move(program), options);
  }
  // Where (row, k) of a 16 x 16 fragment of packed weights lies.
  i32 FragmentOrder(i32 row, i32 k) const {
    if (isa != kCudaBackend) return CpuWorker<kCpuPortable>::FragmentElement(row, k);
    // The registers of mma.sync m16n8k16's first operand, lane by lane.
    return (row % 8 * 4 + k % 8 / 2) * 8 + (row / 8 + k / 8 * 2) * 2 + k % 2;
  }
};

// Every instruction set of this machine, one and three workers; the simulator.
inline std::vector<OpBackend> HostBackends() {
  std::vector<OpBackend> all;
  for (int isa = 0; isa <= BestCpuIsa(); ++isa) {
    all.push_back({absl::StrCat("cpu isa ", isa), isa, 1, "static"});
  }
  all.push_back({"cpu, 3 workers", BestCpuIsa(), 3, "static"});
  all.push_back({"sim, 2 workers", kSimBackend, 2, "static"});
  return all;
}

class OpRig {
 public:
  explicit OpRig(const std::string& name) : graph_(name) {}

  Graph& graph() { return graph_; }

  // A tensor that starts with these elements.
  template <class E>
  TensorId Add(const std::string& name, TensorRole role, const std::vector<E>& content) {
    const TensorId id = graph_.AddTensor(
        name, DTypeOf<E>(), {static_cast<int>(content.size() + kGuardBytes / sizeof(E))}, role);
    Declare(id, content);
    return id;
  }
  template <class E>
  TensorId Input(const std::string& name, const std::vector<E>& content) {
    return Add(name, TensorRole::kInput, content);
  }
  // A tensor full of poison.
  template <class E>
  TensorId Output(const std::string& name, size_t count, TensorRole role = TensorRole::kOutput) {
    std::vector<E> poison(count);
    std::memset(static_cast<void*>(poison.data()), 0xff, count * sizeof(E));
    return Add(name, role, poison);
  }
  // The initial content of a tensor that was added to the graph elsewhere.
  template <class E>
  void Declare(TensorId id, const std::vector<E>& content) {
    Content c{id, std::vector<u8>(content.size() * sizeof(E) + kGuardBytes, kGuard)};
    if (!content.empty()) std::memcpy(c.bytes.data(), content.data(), content.size() * sizeof(E));
    contents_.push_back(std::move(c));
  }
  // Elements to declare behind the content of a tensor of E.
  template <class E>
  static constexpr int GuardElements() {
    return static_cast<int>(kGuardBytes / sizeof(E));
  }

  void Start(const OpBackend& backend) {
    absl::StatusOr<Program> program = Lower(graph_);
    INFO(program.status());
    REQUIRE(program.ok());
    auto made = backend.Make(*std::move(program));
    INFO(made.status());
    REQUIRE(made.ok());
    executor_ = *std::move(made);
    for (const Content& c : contents_) Upload(executor_->TensorBuffer(c.id), c.bytes);
  }
  void Step(const StepHeader& header) {
    const absl::Status status = executor_->RunStep(header);
    INFO(status);
    REQUIRE(status.ok());
  }

  template <class E>
  std::vector<E> Get(TensorId id) {
    const Content* content = nullptr;
    for (const Content& c : contents_) {
      if (c.id.index == id.index) content = &c;
    }
    REQUIRE(content != nullptr);
    std::vector<u8> bytes(content->bytes.size());
    Check(executor_->Read(executor_->TensorBuffer(id), 0, bytes.data(), Size(bytes)));
    bool guarded = true;
    for (size_t i = bytes.size() - kGuardBytes; i < bytes.size(); ++i) {
      guarded = guarded && bytes[i] == kGuard;
    }
    CHECK(guarded);
    std::vector<E> result((bytes.size() - kGuardBytes) / sizeof(E));
    if (!result.empty()) {
      std::memcpy(static_cast<void*>(result.data()), bytes.data(), result.size() * sizeof(E));
    }
    return result;
  }
  template <class E>
  void Set(TensorId id, const std::vector<E>& content) {
    Check(executor_->Write(executor_->TensorBuffer(id), 0, content.data(),
                           static_cast<int64_t>(content.size() * sizeof(E))));
  }

  // Memory that step headers point to.
  template <class E>
  Buffer Allocate(const std::vector<E>& content) {
    absl::StatusOr<Buffer> buffer = executor_->AllocateBuffer(
        static_cast<int64_t>(std::max<size_t>(content.size(), 1) * sizeof(E)));
    REQUIRE(buffer.ok());
    if (!content.empty()) WriteBuffer(*buffer, content);
    return *buffer;
  }
  template <class E>
  void WriteBuffer(const Buffer& buffer, const std::vector<E>& content) {
    Check(executor_->Write(buffer, 0, content.data(),
                           static_cast<int64_t>(content.size() * sizeof(E))));
  }
  template <class E>
  std::vector<E> ReadBuffer(const Buffer& buffer, size_t count) {
    std::vector<E> content(count);
    Check(executor_->Read(buffer, 0, content.data(), static_cast<int64_t>(count * sizeof(E))));
    return content;
  }

  // That the tensors nobody may write are as they were.
  void CheckUnwritten() {
    for (const Content& c : contents_) {
      if (graph_.tensors()[c.id.index].role != TensorRole::kInput) continue;
      std::vector<u8> bytes(c.bytes.size());
      Check(executor_->Read(executor_->TensorBuffer(c.id), 0, bytes.data(), Size(bytes)));
      INFO(graph_.tensors()[c.id.index].name);
      CHECK(bytes == c.bytes);
    }
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr u8 kGuard = 0xa5;

  struct Content {
    TensorId id;
    std::vector<u8> bytes;
  };

  static int64_t Size(const std::vector<u8>& bytes) { return static_cast<int64_t>(bytes.size()); }
  void Check(const absl::Status& status) {
    INFO(status);
    REQUIRE(status.ok());
  }
  void Upload(const Buffer& buffer, const std::vector<u8>& bytes) {
    Check(executor_->Write(buffer, 0, bytes.data(), Size(bytes)));
  }

  Graph graph_;
  std::vector<Content> contents_;
  std::unique_ptr<Executor> executor_;
};

// Rows, slots, histories and block tables of a step, as a serving host would keep them.
struct OpStep {
  std::vector<Row> rows;
  std::vector<SlotState> slots;
  std::vector<std::vector<i32>> histories;  // by slot, as long as their capacity
  std::vector<u32> block_table;
  u32 blocks_per_slot = 0;

  Buffer rows_buffer, slots_buffer, table_buffer, results_buffer;
  std::vector<Buffer> history_buffers;

  i32 Length(const Row& row) const { return QueryLength(row, slots.data(), 0); }
  i32 Tokens() const {
    i32 sum = 0;
    for (const Row& row : rows) sum += Length(row);
    return sum;
  }

  void Upload(OpRig& rig) {
    for (size_t i = 0; i < histories.size(); ++i) {
      history_buffers.push_back(rig.Allocate(histories[i]));
      slots[i].history = history_buffers[i].address;
    }
    slots_buffer = rig.Allocate(slots);
    table_buffer = rig.Allocate(block_table);
    rows_buffer = rig.Allocate(std::vector<Row>(1024));
    results_buffer = rig.Allocate(std::vector<StepResult>(1024));
  }
  // The header of a step over `rows`; symbols are the caller's.
  StepHeader Header(OpRig& rig) {
    if (!rows.empty()) rig.WriteBuffer(rows_buffer, rows);
    StepHeader header = {};
    header.rows = static_cast<u32>(rows.size());
    header.rows_capacity = 1024;
    header.rows_ptr = rows_buffer.address;
    header.block_table_ptr = table_buffer.address;
    header.slot_state_ptr = slots_buffer.address;
    header.results_ring_ptr = results_buffer.address;
    header.blocks_per_slot = blocks_per_slot;
    return header;
  }
};

}  // namespace eventide
