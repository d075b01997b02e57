// block_sparse_bench [DEVICE [BATCH]]: one layer's attention of decode rows, dense and over the best K blocks
// (ops/pick_blocks.h), scoring and tables included: milliseconds a step, and KV and bounds that it reads.
// 8 KV heads of 64, 4 query heads each, bfloat16, blocks of 16 tokens.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/program.h"
#include "core/status.h"
#include "device/dtype.h"
#include "ops/block_bounds.h"
#include "ops/paged_attention.h"
#include "ops/pick_blocks.h"
#include "ops/pick_items.h"
#include "ops/plan.h"
#include "serve/backend.h"

namespace eventide {
namespace {

constexpr int kHeadDim = 64, kKvHeads = 8, kGroup = 4, kBlock = 16;
constexpr int kStride = (kGroup + 2) * kHeadDim, kSteps = 30;
constexpr int kMaxPartials = 1 << 14, kMaxGroups = 1024, kMaxItems = 8192;

struct Tensors {
  TensorId qkv, cache, bounds, rope, q_norm;
};

// `picked` < 0: dense.
Graph AttentionGraph(int rows, int blocks, int picked, Tensors* t) {
  Graph g("block_sparse");
  const int variant = Storage<BF16>::kVariant, row = kKvHeads * kStride;
  const auto add = [&](const char* name, DType type, std::vector<Expr> shape, TensorRole role) {
    return g.AddTensor(name, type, std::move(shape), role);
  };
  const auto scratch = [&](const char* name, std::vector<Expr> shape) {
    return add(name, DType::kI32, std::move(shape), TensorRole::kScratch);
  };
  const EventId planned = g.AddEvents("planned", {1}), itemised = g.AddEvents("itemised", {1});
  const EventId picks = g.AddEvents("picks", {1}), attended = g.AddEvents("attended", {1});
  const TensorId counts = g.AddPublished("counts", {int{kStepCounts}}, 0, kMaxItems, planned, {0});
  const TensorId start = scratch("row_start", {rows + 1}), items = scratch("items", {kMaxItems, 12});
  t->qkv = add("qkv", DType::kF32, {rows, row}, TensorRole::kInput);
  t->cache = add("cache", DType::kBF16, {rows * blocks, 2 * kKvHeads * kBlock * kHeadDim}, TensorRole::kState);
  t->rope = add("rope", DType::kF32, {blocks * kBlock + 1, kHeadDim}, TensorRole::kInput);
  t->q_norm = add("q_norm", DType::kBF16, {kHeadDim}, TensorRole::kInput);
  const TensorId partials =
      add("partials", DType::kF32, {kMaxPartials, kKvHeads * kGroup, kHeadDim + 2}, TensorRole::kState);
  const TensorId merge = add("merge", DType::kU32, {kMaxGroups, kKvHeads}, TensorRole::kState);
  const TensorId output = add("output", DType::kBF16,
                              {CeilDiv(rows, 8), static_cast<int64_t>(ActivationGroup(kKvHeads * kGroup * kHeadDim))},
                              TensorRole::kOutput);
  g.Call<Plan>("plan",
               {start, scratch("token_row", {rows}), scratch("row_output", {rows}),
                scratch("output_token", {rows}), items, counts},
               {kHeadDim, kKvHeads, kGroup, 0, kMaxItems, kMaxPartials, kMaxGroups, rows, 512}, {1}, variant)
      .Notify(planned, {0});
  AttentionParams params = {kHeadDim, kKvHeads, kGroup, kStride, kBlock, 0, 0.125f, 1e-6f, 0, 0};
  if (picked < 0) {
    g.Call<PagedAttention>("attention",
                           {items, start, t->qkv, t->cache, t->q_norm, t->q_norm, t->rope, partials, merge,
                            output, items, items},
                           params, {g.Load(counts, {int{kCountItems}}), kKvHeads, 1}, variant)
        .Wait(planned, {0});
    return g;
  }
  t->bounds = add("bounds", DType::kBF16, {rows * blocks, kKvHeads * 2 * kHeadDim}, TensorRole::kState);
  const TensorId tokens = scratch("picked", {rows}), table = scratch("table", {rows, kKvHeads, blocks});
  const TensorId pick_items = scratch("pick_items", {kMaxItems, 12});
  const TensorId pick_counts =
      g.AddPublished("pick_counts", {int{kStepCounts}}, 0, kMaxItems, itemised, {0});
  g.Call<PickBlocks>("pick_blocks", {start, t->qkv, t->bounds, t->q_norm, t->rope, tokens, table},
                     {kHeadDim, kKvHeads, kGroup, kStride, kBlock, picked, blocks, 0, 1e-6f},
                     {rows, kKvHeads}, variant)
      .Wait(planned, {0})
      .Notify(picks, {0});
  g.Call<PickItems>("pick_items", {start, tokens, pick_items, pick_counts},
                    {kHeadDim, kGroup, 8, kMaxItems, kMaxPartials, kMaxGroups}, {1}, variant)
      .Wait(picks, {0})
      .Notify(itemised, {0});
  params.picked = blocks;
  g.Call<PagedAttention>("attention",
                         {pick_items, start, t->qkv, t->cache, t->q_norm, t->q_norm, t->rope, partials,
                          merge, output, tokens, table},
                         params, {g.Load(pick_counts, {int{kCountItems}}), kKvHeads, 1}, variant)
      .Wait(itemised, {0})
      .Notify(attended, {0});
  g.Call<BlockBounds>("block_bounds", {start, t->cache, t->bounds}, {kHeadDim, kKvHeads, kBlock},
                      {rows, kKvHeads}, variant)
      .Wait(attended, {0});
  return g;
}

absl::Status Measure(const std::string& device, int rows, int context, int picked) {
  const int blocks = context / kBlock + 1;
  Tensors t;
  ASSIGN_OR_RETURN(Program program, Lower(AttentionGraph(rows, blocks, picked, &t)));
  BackendOptions options;
  options.device = device;
  options.time_steps = true;
  ASSIGN_OR_RETURN(const Backend backend, MakeBackend(std::move(program), options));
  Executor& executor = *backend.executor;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto fill = [&](TensorId tensor, bool floats) {
    const Buffer buffer = executor.TensorBuffer(tensor);
    std::vector<uint8_t> bytes(static_cast<size_t>(buffer.bytes));
    for (size_t i = 0; i < bytes.size(); i += floats ? 4 : 2) {
      const float value = normal(random);
      const BF16 small = Storage<BF16>::From(value);
      std::memcpy(bytes.data() + i, floats ? static_cast<const void*>(&value) : &small, floats ? 4 : 2);
    }
    return executor.Write(buffer, 0, bytes.data(), buffer.bytes);
  };
  RETURN_IF_ERROR(fill(t.qkv, true));
  RETURN_IF_ERROR(fill(t.rope, true));
  RETURN_IF_ERROR(fill(t.cache, false));
  RETURN_IF_ERROR(fill(t.q_norm, false));
  if (picked >= 0) RETURN_IF_ERROR(fill(t.bounds, false));
  std::vector<Row> row(static_cast<size_t>(rows));
  std::vector<SlotState> slots(row.size());
  std::vector<u32> table(row.size() * static_cast<size_t>(blocks));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<u32>(i);
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = {static_cast<u32>(i), 1, 0, kRowNone};
    slots[i].context_length = static_cast<u32>(context);
  }
  StepHeader header = {};
  header.rows = header.rows_capacity = static_cast<u32>(rows);
  header.blocks_per_slot = static_cast<u32>(blocks);
  const auto place = [&](const void* data, size_t bytes) -> absl::StatusOr<u64> {
    ASSIGN_OR_RETURN(const Buffer buffer, executor.AllocateBuffer(static_cast<int64_t>(bytes)));
    RETURN_IF_ERROR(executor.Write(buffer, 0, data, static_cast<int64_t>(bytes)));
    return buffer.address;
  };
  ASSIGN_OR_RETURN(header.rows_ptr, place(row.data(), row.size() * sizeof(Row)));
  ASSIGN_OR_RETURN(header.slot_state_ptr, place(slots.data(), slots.size() * sizeof(SlotState)));
  ASSIGN_OR_RETURN(header.block_table_ptr, place(table.data(), table.size() * 4));
  std::vector<double> ms;
  for (int i = 0; i < kSteps; ++i) {
    RETURN_IF_ERROR(executor.RunStep(header));
    if (i >= kSteps / 3) ms.push_back(executor.LastStepMs());
  }
  std::nth_element(ms.begin(), ms.begin() + static_cast<long>(ms.size() / 2), ms.end());
  const int64_t attended = picked < 0 ? context : std::min(context, picked * kBlock);
  const int64_t token = int64_t{2} * kKvHeads * kHeadDim * 2, scored = picked < 0 ? 0 : context / kBlock;
  std::printf("context %6d, %-12s %8.3f ms, %8.2f MB\n", context,
              picked < 0 ? "dense" : ("best " + std::to_string(picked)).c_str(), ms[ms.size() / 2],
              static_cast<double>(rows * token * (attended + scored)) / 1e6);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const std::string device = argc > 1 ? argv[1] : "auto";
  const int rows = argc > 2 ? std::atoi(argv[2]) : 4;
  const absl::StatusOr<std::string> resolved = ResolveDevice(device);
  if (!resolved.ok()) return 2;
  std::printf("%d rows on %s\n", rows, resolved->c_str());
  for (const int context : {1024, 4096, 16000}) {
    for (const int picked : {-1, 16, 64, 256}) {
      const absl::Status status = Measure(*resolved, rows, context, picked);
      if (status.ok()) continue;
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace eventide

int main(int argc, char** argv) { return eventide::Main(argc, argv); }
