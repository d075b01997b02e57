// Attention by several groups of threads, as the warps of a GPU's worker are: waves of several chunks, results
// that wait for room in Scratch, parts that leave theirs in memory. On hosts a worker is one group; here each
// group of a task is a thread of its own.
#include <barrier>
#include <mutex>
#include <thread>

#include "tests/ops/attention_case.h"

namespace eventide {
namespace {

constexpr i32 kGroups = 8;

// What the groups of one task share.
template <class W>
struct Team {
  W& worker;
  std::barrier<> barrier{kGroups};
  std::mutex mutex;
  u32 arrivals = 0;
};

template <class T>
class GroupTile : public HostAttentionTile<T> {
 public:
  template <class W>
  explicit GroupTile(W& w) : HostAttentionTile<T>(w), group_(w.group) {}

  i32 Start(i32 units, i32 rows, i32 head_dim) {
    HostAttentionTile<T>::Start(units, rows, head_dim);
    return units == 1 ? group_ : 0;
  }
  template <class Pages, class Visit>
  i32 ForEachPage(i32 slot, i32 chunks, const Pages& pages, const Visit& visit) {
    i32 ahead = 0;
    for (i32 number = 0, seen = -1; ahead != seen; ++number) {
      seen = ahead;
      for (i32 of = 0; of < chunks; ++of) {
        if (number >= pages(of)) continue;
        if (of == slot) visit(number, ahead);
        ++ahead;
      }
    }
    return ahead;
  }

 private:
  i32 group_;
};

// One group's view of its worker.
template <class W>
struct GroupWorker {
  template <class T>
  using AttentionTile = GroupTile<T>;
  template <class T>
  using LongAttention = HostLongAttention<T>;  // all groups do the same
  static constexpr i32 kGroups = eventide::kGroups;
  static constexpr bool kSwizzledKv = false;
  static constexpr bool kPagesAreCopies = false;

  Team<W>& team;
  i32 group;
  i32 taken[kLanes] = {0, 0};

  bool Leader() const { return group == 0; }
  void Sync() { team.barrier.arrive_and_wait(); }
  bool AwaitReady() {
    Sync();
    return team.worker.AwaitReady();
  }
  u8* Scratch() { return team.worker.Scratch(); }
  u8* Prepared() { return team.worker.Prepared(); }
  CpuPage Peek(u32 lane, i32 ahead) { return team.worker.Peek(lane, taken[lane] + ahead); }
  CpuPage Take(u32 lane) { return team.worker.Peek(lane, taken[lane]++); }
  void Drop(u32) {}
  void Release(u32, i32, i32, bool) {}
  void Advance(u32 lane, i32 pages) { taken[lane] += pages; }
  u8* Own(CpuPage& page, const CopyShape& shape) {
    const std::lock_guard lock(team.mutex);
    return team.worker.Own(page, shape);
  }
  template <class F>
  void Parallel(i32 n, const F& f) {
    for (i32 i = group; i < n; i += kGroups) f(i);
  }
  template <class Load, class Store>
  void RowSums(i32 rows, i32 n, const Load& load, const Store& store) {
    for (i32 row = group; row < rows; row += kGroups) store(row, LaneSum(row, n, load));
  }
  u32 Arrive(u32* counter) {
    Sync();
    if (Leader()) team.arrivals = team.worker.Arrive(counter);
    Sync();
    return team.arrivals;
  }
};

// Its pages come in the order in which so many groups need them.
struct ManyGroups : CpuWorker<kCpuPortable> {
  static constexpr i32 kGroups = eventide::kGroups;
};

struct GroupedAttention : PagedAttention {
  template <class T, class W>
  static void Compute(W& w, const Task<Params>& t) {
    Team<W> team{w};
    std::vector<std::jthread> threads;
    for (i32 group = 0; group < kGroups; ++group) {
      threads.emplace_back([&, group] {
        GroupWorker<W> worker{team, group};
        PagedAttention::Compute<T>(worker, t);
      });
    }
  }
};

const CpuOpTable& GroupedOps() {
  static const CpuOpTable* ops = [] {
    auto* table = new CpuOpTable(CpuOps(kCpuPortable));
    table->Add("paged_attention", Storage<BF16>::kVariant,
               OpParts<GroupedAttention, BF16, ManyGroups, CpuWorkerBase>::Functions());
    return table;
  }();
  return *ops;
}

const OpBackend kOneGroup{"one group", kCpuPortable};

OpBackend Grouped(int workers) {
  return {.name = "groups", .isa = kCpuPortable, .workers = workers, .ops = &GroupedOps()};
}

TEST_CASE("attention by groups of threads has the bits of one group, in waves and parts of every kind") {
  // Heads whose results fit Scratch all at once, a few at a time, and one at a time.
  for (const AttentionShape& shape :
       {AttentionShape{.head_dim = 128, .kv_heads = 1, .group = 4}, AttentionShape{.head_dim = 64, .kv_heads = 1, .group = 4},
        AttentionShape{.head_dim = 128, .kv_heads = 1, .group = 8, .qk_norm = true},
        AttentionShape{.head_dim = 256, .kv_heads = 1, .group = 9},
        AttentionShape{.head_dim = 8, .kv_heads = 2, .group = 5, .window = 700}}) {
    INFO("head_dim " << shape.head_dim << ", group " << shape.group);
    AttentionShape s = shape;
    s.max_positions = 2200;
    s.max_partials = 0;
    const AttentionData<BF16> data(s, 3);
    s.max_partials = 4096;
    const AttentionData<BF16> split_data(s, 3);
    // 512 and 1,000: a second wave of chunks begins without waiting for the first, where results have room.
    for (const int context : {0, 300, 511, 512, 640, 1000, 2100}) {
      INFO("context " << context);
      const auto whole = LongDecode(kOneGroup, data, context, 1);
      for (const int workers : {1, 3, 20}) {
        INFO(workers << " workers");
        const auto grouped = LongDecode(Grouped(workers), split_data, context, workers);
        CHECK(SameBits(whole[0], grouped[0]));
        CHECK(SameBits(whole[1], grouped[1]));
      }
    }
  }
}

TEST_CASE("attention by groups of threads agrees with float64") {
  CheckAgainstReference<BF16>(Grouped(2), {.head_dim = 64, .kv_heads = 1, .group = 7}, 65);
  CheckAgainstReference<BF16>(Grouped(1), {.head_dim = 80, .kv_heads = 3, .group = 3, .qk_norm = true}, 200);
}

}  // namespace
}  // namespace eventide
