// Refusals found by expanding tasks: arrivals against targets, waits against the linear order, and
// paths of events between conflicting accesses.
#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/str_format.h"
#include "core/expand.h"

namespace eventide {
namespace {

// Sets of tasks, one per task or event element, as rows of bits.
class TaskSets {
 public:
  TaskSets(size_t rows, size_t tasks) : words_((tasks + 63) / 64), bits_(rows * words_) {}
  size_t words() const { return words_; }
  void Insert(size_t row, int task) {
    bits_[row * words_ + task / 64] |= uint64_t{1} << (task % 64);
  }
  bool Has(size_t row, int task) const {
    return bits_[row * words_ + task / 64] >> (task % 64) & 1;
  }
  void Merge(size_t into, const TaskSets& other, size_t from) {
    for (size_t w = 0; w < words_; ++w) bits_[into * words_ + w] |= other.bits_[from * words_ + w];
  }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

bool Overlap(const Box& a, const Box& b) {
  const int dims = std::min(a.dims, b.dims);
  for (int i = 0; i < dims; ++i) {
    if (a.low[i] >= b.high[i] || b.low[i] >= a.high[i]) return false;
  }
  return true;
}

// Judges one expansion.
class Judge {
 public:
  Judge(const Graph& graph, const Program& program, const Expander& expander,
        const Expansion& expansion)
      : graph_(graph), program_(program), expander_(expander), expansion_(expansion) {}

  absl::Status Run() {
    Arrivals();
    RETURN_IF_ERROR(CheckOrder());
    RETURN_IF_ERROR(CheckTargets());
    return CheckAccesses();
  }

  int64_t work() const { return work_; }

 private:
  bool GateSkips(const ExpandedTask& task, int element) const {
    return program_.grids[task.grid].is_gate && expansion_.derived[element] != 0;
  }

  // Who notifies each element: how often in all, how often by ordinary tasks, the last task.
  void Arrivals() {
    rows_.assign(expansion_.target.size(), -1);
    for (size_t t = 0; t < expansion_.tasks.size(); ++t) {
      const ExpandedTask& task = expansion_.tasks[t];
      for (int i = task.first_wait; i < task.end; ++i) {
        const int element = expansion_.elements[i];
        if (rows_[element] < 0) {
          rows_[element] = static_cast<int>(elements_.size());
          elements_.push_back({});
        }
        if (i < task.first_notify || GateSkips(task, element)) continue;
        Element& state = elements_[rows_[element]];
        state.arrivals += task.weight;
        if (!program_.grids[task.grid].is_gate) state.ordinary += task.weight;
        state.last = static_cast<int>(t);
      }
    }
  }

  // A wait on something that a later task notifies: a cycle, or an order that policies deadlock on.
  absl::Status CheckOrder() {
    for (size_t t = 0; t < expansion_.tasks.size(); ++t) {
      const ExpandedTask& task = expansion_.tasks[t];
      for (int i = task.first_wait; i < task.first_notify; ++i) {
        const Element& state = elements_[rows_[expansion_.elements[i]]];
        if (state.last < static_cast<int>(t)) continue;
        const ExpandedTask& last = expansion_.tasks[state.last];
        const bool cycle =
            state.last == static_cast<int>(t) || WaitsFor(state.last, static_cast<int>(t));
        const std::string waiter = expander_.TaskName(task), notifier = expander_.TaskName(last);
        const std::string element = expander_.ElementText(expansion_.elements[i]);
        if (cycle) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "%s waits on %s, which is notified by %s, which waits for the former: a "
              "cycle",
              waiter, element, notifier));
        }
        return absl::InvalidArgumentError(
            absl::StrFormat("%s waits on %s, which is notified by the later %s: workers take tasks "
                            "in order and would "
                            "deadlock; call the notifying grid first",
                            waiter, element, notifier));
      }
    }
    return absl::OkStatus();
  }

  // Whether task `from` waits, through any number of events, for task `to`.
  bool WaitsFor(int from, int to) const {
    std::map<int, std::vector<int>> notifiers;
    for (size_t t = 0; t < expansion_.tasks.size(); ++t) {
      const ExpandedTask& task = expansion_.tasks[t];
      for (int i = task.first_notify; i < task.end; ++i)
        notifiers[expansion_.elements[i]].push_back(static_cast<int>(t));
    }
    std::vector<bool> seen(expansion_.tasks.size());
    std::vector<int> stack = {from};
    while (!stack.empty()) {
      const ExpandedTask& task = expansion_.tasks[stack.back()];
      stack.pop_back();
      for (int i = task.first_wait; i < task.first_notify; ++i) {
        const auto found = notifiers.find(expansion_.elements[i]);
        if (found == notifiers.end()) continue;
        for (int other : found->second) {
          if (other == to) return true;
          if (!seen[other]) stack.push_back(other);
          seen[other] = true;
        }
      }
    }
    return false;
  }

  // Every element that is waited on gets as many arrivals as its target says, and at least one.
  absl::Status CheckTargets() const {
    for (const ExpandedTask& task : expansion_.tasks) {
      for (int i = task.first_wait; i < task.first_notify; ++i) {
        const int element = expansion_.elements[i];
        const Element& state = elements_[rows_[element]];
        const int64_t target = expansion_.target[element], derived = expansion_.derived[element];
        const auto fault = [&](const std::string& what) {
          return absl::InvalidArgumentError(absl::StrFormat("%s waits on %s, %s",
                                                            expander_.TaskName(task),
                                                            expander_.ElementText(element), what));
        };
        const char* names = CountsName(element);
        if (derived == 0 && !expansion_.possible[element] && !program_.grids[task.grid].is_gate) {
          return fault("which is notified by nobody: the wait can never fire");
        }
        if (state.arrivals < target) {
          return fault(
              absl::StrFormat("which %d tasks notify while its target%s is %d: the wait can never "
                              "fire",
                              state.arrivals, names, target));
        }
        if (state.arrivals > target) {
          return fault(absl::StrFormat(
              "which %d tasks notify while its target%s is %d: the wait fires early",
              state.arrivals, names, target));
        }
        if (derived != state.ordinary) {
          return fault(absl::StrFormat("which %d tasks notify while %d were derived",
                                       state.ordinary, derived));
        }
        if (target == 0 && !program_.grids[task.grid].is_gate) {
          return fault(
              "which is notified by nobody: its target is zero, and it would be open at once");
        }
      }
    }
    return absl::OkStatus();
  }

  const char* CountsName(int element) const {
    for (size_t e = 0; e < program_.events.size(); ++e) {
      if (element < program_.events[e].base + program_.events[e].elements)
        return graph_.events()[e].count_tensor >= 0 ? " (from its counts)" : "";
    }
    return "";
  }

  absl::Status CheckAccesses() {
    const size_t tasks = expansion_.tasks.size();
    TaskSets before(tasks, tasks), fired(elements_.size(), tasks);
    std::map<int, std::vector<const Access*>> earlier;
    size_t next = 0;
    for (size_t t = 0; t < tasks; ++t) {
      const ExpandedTask& task = expansion_.tasks[t];
      for (int i = task.first_wait; i < task.first_notify; ++i)
        before.Merge(t, fired, rows_[expansion_.elements[i]]);
      const size_t first = next;
      for (; next < expansion_.accesses.size() &&
             expansion_.accesses[next].task == static_cast<int>(t);
           ++next)
        RETURN_IF_ERROR(CheckAccess(before, earlier, expansion_.accesses[next]));
      for (size_t i = first; i < next; ++i)
        earlier[expansion_.accesses[i].tensor].push_back(&expansion_.accesses[i]);
      for (int i = task.first_notify; i < task.end; ++i) {
        const int element = expansion_.elements[i];
        if (GateSkips(task, element)) continue;
        fired.Merge(rows_[element], before, t);
        fired.Insert(rows_[element], static_cast<int>(t));
      }
      work_ += static_cast<int64_t>(before.words()) * (task.end - task.first_wait);
    }
    return absl::OkStatus();
  }

  // Tensors without a region are taken whole.
  static const char* Hint(const Access& a, const Access& b) {
    return a.has_region && b.has_region
               ? ""
               : " (if they touch different parts of it, say which with Region)";
  }

  absl::Status CheckAccess(const TaskSets& before,
                           std::map<int, std::vector<const Access*>>& earlier,
                           const Access& access) {
    const TensorDecl& tensor = program_.tensors[access.tensor];
    if (tensor.role == TensorRole::kWeight || tensor.role == TensorRole::kInput)
      return absl::OkStatus();
    const ExpandedTask& task = expansion_.tasks[access.task];
    bool written = false;
    const std::vector<const Access*>& others = earlier[access.tensor];
    work_ += static_cast<int64_t>(others.size());
    for (const Access* other : others) {
      const ExpandedTask& first = expansion_.tasks[other->task];
      if (!Overlap(access.box, other->box)) continue;
      written |= other->writes;
      if (!access.writes && !other->writes) continue;
      // Tasks of one grid and layer touch different parts.
      if (first.grid == task.grid && first.layer == task.layer) continue;
      if (before.Has(access.task, other->task)) continue;
      const std::string later = expander_.TaskName(task), former = expander_.TaskName(first);
      const std::string name =
          access.is_load ? absl::StrCat(tensor.name, " (to evaluate an extent or an edge)")
                         : tensor.name;
      if (!access.writes) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s reads tensor %s with no event path from the write by %s%s", later,
                            name, former, Hint(access, *other)));
      }
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s writes tensor %s and may overtake the earlier %s by %s: no event path leads from the "
          "latter to the former%s",
          later, name, other->writes ? "write" : "read", former, Hint(access, *other)));
    }
    const bool needs = tensor.role == TensorRole::kScratch || tensor.role == TensorRole::kOutput;
    if (!access.writes && !written && needs) return CheckLaterWrite(access, task, tensor);
    return absl::OkStatus();
  }

  // Nobody has written what is read: fatal if somebody will, harmless if no task exists that does
  // (what is read then is not used; there is nothing to order).
  absl::Status CheckLaterWrite(const Access& access, const ExpandedTask& task,
                               const TensorDecl& tensor) const {
    for (const Access& other : expansion_.accesses) {
      if (other.tensor != access.tensor || !other.writes || other.task <= access.task) continue;
      const ExpandedTask& writer = expansion_.tasks[other.task];
      if (!Overlap(access.box, other.box)) continue;
      if (writer.grid == task.grid && writer.layer == task.layer) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("%s reads tensor %s before the first write, by the later %s",
                          expander_.TaskName(task), tensor.name, expander_.TaskName(writer)));
    }
    return absl::OkStatus();
  }

  struct Element {
    int64_t arrivals = 0, ordinary = 0;
    int last = -1;
  };

  const Graph& graph_;
  const Program& program_;
  const Expander& expander_;
  const Expansion& expansion_;
  std::vector<int> rows_;  // per bank element: its row, or -1 if no task names it
  std::vector<Element> elements_;
  int64_t work_ = 0;
};

// Whether values of published tensors may be drawn independently: they appear in extents only.
bool LoadsAreIndependent(const Graph& graph) {
  const auto has_load = [](const std::vector<IndexRange>& index) {
    return std::any_of(index.begin(), index.end(), [](const IndexRange& range) {
      return range.low.HasLoad() || range.high.HasLoad();
    });
  };
  for (const GridDecl& grid : graph.grids()) {
    for (const Edge& edge : grid.waits)
      if (has_load(edge.index)) return false;
    for (const Edge& edge : grid.notifies)
      if (has_load(edge.index)) return false;
    for (const Operand& operand : grid.operands)
      if (has_load(operand.region)) return false;
  }
  return std::none_of(graph.events().begin(), graph.events().end(),
                      [](const EventDecl& event) { return event.count_tensor >= 0; });
}

bool HasLoads(const Graph& graph) {
  return std::any_of(graph.tensors().begin(), graph.tensors().end(),
                     [](const TensorDecl& tensor) { return tensor.published_by >= 0; });
}

// Every element at its minimum, at its maximum, or anywhere: repeatable for a seed.
PublishedValues DrawIndependently(const Graph& graph, uint64_t seed) {
  return [&graph, seed](int tensor, int64_t element) -> int64_t {
    const TensorDecl& decl = graph.tensors()[tensor];
    if (seed % 4 == 0) return decl.min_value;
    if (seed % 4 == 1) return decl.max_value;
    std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(tensor) * 1000003 +
                           static_cast<uint64_t>(element));
    const uint64_t span = static_cast<uint64_t>(decl.max_value - decl.min_value) + 1;
    return decl.min_value + static_cast<int64_t>(random() % span);
  };
}

}  // namespace

absl::Status VerifyTasks(const Graph& graph, const Program& program, const VerifyOptions& options) {
  const auto note = [&](const std::string& text) {
    if (options.notes) options.notes->push_back(text);
  };
  const bool loads = HasLoads(graph);
  if (loads && !options.sample_published && !LoadsAreIndependent(graph)) {
    note(
        "structure only: edges or counts use device-resident values, and no sample_published was "
        "given");
    return absl::OkStatus();
  }
  const Expander expander(graph, program);
  int64_t work = 0;
  bool too_many = false;
  const auto check = [&](const SymbolValues& values) -> absl::Status {
    const int draws = loads ? std::max(options.published_samples, 1) : 1;
    for (int draw = 0; draw < draws; ++draw) {
      const uint64_t seed = options.seed * 4 + draw;
      const PublishedValues published = options.sample_published && loads
                                            ? options.sample_published(values, seed)
                                            : DrawIndependently(graph, draw);
      absl::StatusOr<Expansion> expansion = expander.Expand(values, published, options.max_tasks);
      if (absl::IsResourceExhausted(expansion.status())) {
        too_many = true;
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(expansion.status());
      Judge judge(graph, program, expander, *expansion);
      RETURN_IF_ERROR(judge.Run());
      work += judge.work();
    }
    return absl::OkStatus();
  };
  size_t left_out = 0;
  for (const SymbolValues& values : SymbolSamples(graph, options.max_samples, options.seed)) {
    if (work > options.max_work) {
      ++left_out;
      continue;
    }
    too_many = false;
    const absl::Status status = check(values);
    left_out += too_many;
    if (status.ok()) continue;
    const SymbolValues smallest = SmallestBad(
        graph, values, [&](const SymbolValues& smaller) { return !check(smaller).ok(); });
    const std::string with = SymbolText(graph.symbols(), smallest);
    return absl::InvalidArgumentError(
        absl::StrCat(check(smallest).message(), with.empty() ? "" : ", with ", with));
  }
  if (left_out > 0) {
    note(absl::StrFormat("%d choices of symbol values were left out: too many tasks to expand",
                         left_out));
  }
  return absl::OkStatus();
}

}  // namespace eventide
