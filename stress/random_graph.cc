#include "stress/random_graph.h"

#include <string>
#include <vector>

#include "ops/page_sum1.h"
#include "ops/page_sum2.h"
#include "ops/publish_count.h"

namespace eventide {
namespace {

// What has been called so far, for later grids to read.
struct RuntimeSource {
  TensorId tensor;
  Expr records;  // readable by anyone who has waited
  EventId done;
  Expr elements;            // of `done`, in one layer
  std::vector<int> behind;  // sources that are final when this one is
};

class RuntimeGraphBuilder {
 public:
  explicit RuntimeGraphBuilder(uint64_t seed)
      : random_(seed), g_("random_" + std::to_string(seed)) {}

  Graph Build() {
    a_ = g_.AddSymbol("a", 0, kRuntimeSymbolMax[0]);
    b_ = g_.AddSymbol("b", 0, kRuntimeSymbolMax[1]);
    weights_ = g_.AddTensor("weights", DType::kU8, {4096}, TensorRole::kWeight);
    x_ = g_.AddTensor("x", DType::kU8, {16, kRecordBytes}, TensorRole::kInput);
    layers_ = 1 + random_.Below(3);
    g_.BeginSection("body", layers_);
    // The state handed from layer to layer.
    state_ =
        g_.AddTensor("state", DType::kU8, {layers_ + 1, b_ + 1, kRecordBytes}, TensorRole::kState);
    state_done_ = g_.AddEvents("state_done", {layers_});
    const int grids = 3 + random_.Below(4);
    for (int i = 0; i < grids; ++i) {
      if (i > 0 && random_.Chance(20)) {
        AddDeviceGrid(i);
      } else {
        AddGrid(i);
      }
    }
    AddLast();
    return std::move(g_);
  }

 private:
  Expr RandomExtent() {
    switch (random_.Below(6)) {
      case 0:
        return a_;
      case 1:
        return b_;
      case 2:
        return a_ + b_;
      case 3:
        return CeilDiv(a_, 2);
      case 4:
        return Max(a_ - 3, 0);
      default:
        return 1 + random_.Below(3);
    }
  }

  // Up to two sources: the first is waited for, the second is the same, another one waited for too,
  // or one that is final when the first is (so that only the chain of events orders it).
  struct Reads {
    std::vector<int> waited;
    int read[2] = {-1, -1};  // -1: the input x
  };
  Reads RandomReads() {
    Reads reads;
    if (sources_.empty() || random_.Chance(15)) return reads;
    const int first = static_cast<int>(sources_.size()) - 1 - random_.Below(Min(3, Count()));
    reads.waited = {first};
    reads.read[0] = first;
    const std::vector<int>& behind = sources_[first].behind;
    if (!behind.empty() && random_.Chance(60)) {
      reads.read[1] = behind[random_.Below(static_cast<int>(behind.size()))];
    } else if (random_.Chance(50)) {
      const int second = random_.Below(Count());
      if (second != first) reads.waited.push_back(second);
      reads.read[1] = second;
    }
    return reads;
  }
  int Count() const { return static_cast<int>(sources_.size()); }

  PageSumParams RandomParams(const Reads& reads, int extent1) {
    PageSumParams params = {};
    params.seed = 1 + random_.Below(1000);
    params.weight_pages = random_.Below(6);
    params.per_page = 1 + random_.Below(3);
    params.extent1 = extent1;
    for (int input = 0; input < 2; ++input) {
      params.records[input] = reads.read[input] < 0 ? DimRef{-1, random_.Below(3)}
                                                    : g_.Dim(sources_[reads.read[input]].records);
    }
    return params;
  }
  Operand Read(int source) {
    if (source < 0) return Operand(x_);
    return Operand(sources_[source].tensor, Layer());
  }
  template <class Handle>
  void WaitAll(Handle& handle, const Reads& reads) {
    for (const int source : reads.waited)
      handle.Wait(sources_[source].done, {Layer(), IndexRange(0, sources_[source].elements)});
  }
  // Final when everything waited for is, and all that is behind it.
  std::vector<int> Behind(const Reads& reads) const {
    std::vector<int> behind;
    for (const int source : reads.waited) {
      behind.push_back(source);
      behind.insert(behind.end(), sources_[source].behind.begin(), sources_[source].behind.end());
    }
    return behind;
  }
  GridHandle CallSum(const std::string& name, std::vector<Operand> operands,
                     const PageSumParams& params, std::vector<Expr> extents) {
    if (random_.Chance(50)) return g_.Call<PageSum1>(name, operands, params, extents);
    return g_.Call<PageSum2>(name, operands, params, extents);
  }

  void AddGrid(int i) {
    const std::string id = std::to_string(i);
    const Reads reads = RandomReads();
    const bool flat = random_.Chance(70);
    const int extent1 = flat ? 1 : 2;
    const Expr extent0 = RandomExtent();
    RuntimeSource source;
    source.records = extent0 * extent1;
    source.tensor = g_.AddTensor("y" + id, DType::kU8, {layers_, source.records, kRecordBytes},
                                 TensorRole::kScratch);
    // One element for all tasks (so that an empty grid needs its gate), or one per few tasks.
    const int per = random_.Chance(60) ? 0 : 1 + random_.Below(3);
    source.elements = per == 0 ? Expr(1) : CeilDiv(extent0, per);
    source.done = g_.AddEvents("done" + id, {layers_, source.elements});
    source.behind = per == 0 ? Behind(reads) : std::vector<int>();
    std::vector<Expr> extents = {extent0};
    if (!flat) extents.push_back(extent1);
    GridHandle handle = CallSum(
        "sum" + id,
        {weights_, Read(reads.read[0]), Read(reads.read[1]), Operand(source.tensor, Layer())},
        RandomParams(reads, extent1), extents);
    WaitAll(handle, reads);
    if (i == 0) handle.Wait(state_done_, {IndexRange(Max(Layer() - 1, 0), Layer())});
    handle.Notify(source.done, {Layer(), per == 0 ? Expr(0) : At(0) / per});
    sources_.push_back(source);
  }

  // A task that decides how many tasks the grid behind it has: none, perhaps.
  void AddDeviceGrid(int i) {
    const std::string id = std::to_string(i);
    const Reads reads = RandomReads();
    const int limit = 1 + random_.Below(4);
    const EventId published = g_.AddEvents("published" + id, {layers_});
    const TensorId count = g_.AddPublished("count" + id, {layers_}, 0, limit, published, {At(0)});
    GridHandle publish =
        g_.Call<PublishCount>("publish" + id, {x_, Operand(count, Layer())}, {limit}, {1});
    WaitAll(publish, reads);
    publish.Notify(published, {Layer()});
    RuntimeSource source;
    source.records = 0;  // how many only the device knows
    source.elements = 1;
    source.tensor =
        g_.AddTensor("y" + id, DType::kU8, {layers_, limit, kRecordBytes}, TensorRole::kScratch);
    source.done = g_.AddEvents("done" + id, {layers_, 1});
    source.behind = Behind(reads);
    GridHandle handle = CallSum(
        "sum" + id,
        {weights_, Read(reads.read[0]), Read(reads.read[1]), Operand(source.tensor, Layer())},
        RandomParams(reads, 1), {g_.Load(count, {Layer()})});
    WaitAll(handle, reads);
    handle.Wait(published, {Layer()});
    handle.Notify(source.done, {Layer(), 0});
    sources_.push_back(source);
  }

  // Reads the state and the last sources, writes the next layer's state.
  void AddLast() {
    Reads reads;
    for (int source = Count() - 1; source >= 0 && source >= Count() - 2; --source)
      reads.waited.push_back(source);
    PageSumParams params = RandomParams(reads, 1);
    params.records[0] = g_.Dim(b_ + 1);
    params.records[1] = g_.Dim(sources_.back().records);
    GridHandle handle = g_.Call<PageSum2>(
        "last",
        {weights_, Operand(state_, Layer()), Read(Count() - 1), Operand(state_, Layer() + 1)},
        params, {b_ + 1});
    WaitAll(handle, reads);
    handle.Wait(state_done_, {IndexRange(Max(Layer() - 1, 0), Layer())});
    handle.Notify(state_done_, {Layer()});
  }

  RuntimeRandom random_;
  Graph g_;
  Expr a_, b_;
  int layers_ = 1;
  TensorId weights_, x_, state_;
  EventId state_done_;
  std::vector<RuntimeSource> sources_;
};

}  // namespace

Graph RandomRuntimeGraph(uint64_t seed) {
  return RuntimeGraphBuilder(seed).Build();
}

}  // namespace eventide
