#include "runtime/sim_world.h"

#include <algorithm>
#include <cstring>

#include "core/status.h"

namespace eventide {
namespace {

constexpr size_t kStackBytes = 512 << 10;  // linear tiles keep their sums on it

// The world whose fibre is running on this thread.
thread_local SimWorld* world = nullptr;

}  // namespace

void SimYield() {
  world->Yield();
}
void SimChanged(const void* address) {
  world->Changed(address);
}
u64 SimVersion() {
  return world->version();
}
void SimBlock(u64 version, const void* address, const SimWait& wait) {
  world->Block(version, address, wait);
}
void SimIssue(const SimCopy& copy) {
  world->Issue(copy);
}
void SimIssueOrHold(void* held, const SimCopy& copy) {
  if (held == nullptr) return world->Issue(copy);
  static_cast<std::vector<SimCopy>*>(held)->push_back(copy);
}
bool SimCoin() {
  return world->Coin();
}
void SimFail(const char* what) {
  world->Fail(what);
}

void SimWorld::Start(uint64_t seed, uint64_t most_switches) {
  state_ = seed;
  strategy_ = static_cast<SimStrategy>(Random() % kSimStrategies);
  most_switches_ = most_switches;
  used_ = 0;
  runnable_.clear();
  blocked_.clear();
  copies_.clear();
  trace_ = {};
  current_ = -1;
  failure_.clear();
}

void SimWorld::Add(SimWorker* worker, void (*body)(void*), void* argument) {
  if (used_ == slots_.size()) {
    slots_.emplace_back();
    slots_.back().fibre = std::make_unique<Fibre>(kStackBytes);
  }
  Slot& slot = slots_[used_];
  slot.worker = worker;
  slot.body = body;
  slot.argument = argument;
  slot.wait = {};
  slot.done = false;
  slot.priority = static_cast<uint32_t>(Random());
  runnable_.push_back(static_cast<int>(used_++));
}

void SimWorld::Main(void* self) {
  auto* here = static_cast<SimWorld*>(self);
  Slot& slot = here->slots_[here->current_];
  slot.body(slot.argument);
  slot.done = true;
  std::erase(here->runnable_, here->current_);
  if (here->runnable_.empty() && here->blocked_.empty()) here->Leave(End::kFinished);
  here->Go(here->Pick());
}

SimWorld::End SimWorld::Run() {
  if (used_ == 0) return End::kFinished;
  for (size_t i = 0; i < used_; ++i) slots_[i].fibre->Reset(&Main, this);
  world = this;
  current_ = runnable_[Below(runnable_.size())];
  Note(static_cast<uint64_t>(current_));
  own_.Switch(nullptr, slots_[current_].fibre.get());
  world = nullptr;
  return end_;
}

void SimWorld::Leave(End end) {
  end_ = end;
  own_.Switch(slots_[current_].fibre.get(), nullptr);
}

void SimWorld::Go(int next) {
  if (next == current_) return;
  Fibre* from = slots_[current_].fibre.get();
  current_ = next;
  own_.Switch(from, slots_[next].fibre.get());
}

int SimWorld::Prefer(size_t runnable) {
  if (strategy_ == SimStrategy::kSticky) {
    if (Below(8) != 0 && std::find(runnable_.begin(), runnable_.end(), current_) != runnable_.end())
      return current_;
  } else if (strategy_ == SimStrategy::kPriorities) {
    const uint32_t chance = Below(256);
    if (chance == 0) slots_[Below(used_)].priority = static_cast<uint32_t>(Random());
    if (chance >= 16) {
      return *std::max_element(runnable_.begin(), runnable_.end(), [this](int a, int b) {
        return slots_[a].priority < slots_[b].priority;
      });
    }
  }
  return runnable_[Below(runnable)];
}

int SimWorld::Pick() {
  for (;;) {
    const size_t runnable = runnable_.size(), copies = copies_.size();
    if (runnable == 0 && copies == 0) Leave(End::kDeadlock);
    bool end_copy = false;
    if (copies > 0) {
      const size_t chance = strategy_ == SimStrategy::kUniform ? runnable + copies : 32;
      const size_t share = strategy_ == SimStrategy::kUniform ? copies : 1;
      end_copy = runnable == 0 || Below(chance) < share;
    }
    if (end_copy) {
      const size_t index = Below(copies);
      Note(1000 + index);
      EndCopy(index);
      continue;
    }
    const int next = Prefer(runnable);
    Note(static_cast<uint64_t>(next));
    return next;
  }
}

void SimWorld::EndCopy(size_t index) {
  const SimCopy copy = copies_[index];
  copies_[index] = copies_.back();
  copies_.pop_back();
  const CopyShape& shape = copy.shape;
  for (i32 i = 0; i < shape.pieces * shape.runs; ++i) {
    if (copy.unit > 0) {
      u8* to = copy.to + static_cast<size_t>(i / 8) * shape.bytes + i % 8 * copy.unit;
      for (u32 at = 0; at < shape.bytes; at += 8 * copy.unit) {
        std::memcpy(to + at, copy.from[i] + at, copy.unit);
      }
      continue;
    }
    const size_t piece = static_cast<size_t>(i % shape.pieces);
    const size_t run = static_cast<size_t>(i / shape.pieces);
    std::memcpy(copy.to + run * shape.run_bytes + piece * shape.bytes, copy.from[i],
                i % shape.pieces + 1 == shape.pieces ? shape.last_bytes : shape.bytes);
  }
  *copy.done = 1;
  ++trace_.copies;
  Changed(copy.done);
}

void SimWorld::Changed(const void* address) {
  ++version_;
  for (size_t i = 0; i < blocked_.size();) {
    const Slot& slot = slots_[blocked_[i]];
    if (slot.address != nullptr && slot.address != address) {
      ++i;
      continue;
    }
    runnable_.push_back(blocked_[i]);
    blocked_[i] = blocked_.back();
    blocked_.pop_back();
  }
}

void SimWorld::Block(uint64_t version, const void* address, const SimWait& wait) {
  if (version != version_) return;
  Slot& slot = slots_[current_];
  slot.address = address;
  slot.wait = wait;
  std::erase(runnable_, current_);
  blocked_.push_back(current_);
  Go(Pick());
  slot.wait.kind = SimWait::kNothing;
}

void SimWorld::Fail(const char* what) {
  failure_ = what;
  Leave(End::kFailed);
  EVT_CHECK(false);
}

std::vector<SimWorld::Waiting> SimWorld::Fibres() const {
  std::vector<Waiting> list;
  for (size_t i = 0; i < used_; ++i)
    list.push_back({slots_[i].worker, slots_[i].wait, slots_[i].done});
  return list;
}

}  // namespace eventide
