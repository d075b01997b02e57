#include "machine/machine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>


namespace eventide::machine {
namespace {

constexpr int kTurn = 400;        // instructions of a warp at most before others have their turn
constexpr uint64_t kNap = 16;     // rounds after which a warp that polls looks again although nothing has changed: at clocks
constexpr uint64_t kSilent = 2'000'000;  // rounds in which no warp does more than poll: a deadlock

uint64_t Now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

class Runner {
 public:
  Runner(const Launch& launch, GlobalMemory* memory, const Settings& settings) {
    grid_.launch = &launch;
    grid_.memory = memory;
    grid_.settings = settings;
    grid_.random.Seed(settings.seed + 1);
    const Code& code = *launch.code;
    for (const Code::Special& special : code.specials) {
      if (special.name == "%globaltimer" || special.name == "%clock64") timers_.push_back(special.place);
    }
    const uint32_t warps = (launch.threads + kLanes - 1) / kLanes, agents = warps + kEngines,
                   blocks = launch.grid[0] * launch.grid[1] * launch.grid[2];
    grid_.engines.resize(size_t{blocks} * agents);
    for (uint32_t b = 0; b < blocks; ++b) {
      auto block = std::make_unique<Block>();
      block->grid = &grid_;
      block->x = b % launch.grid[0];
      block->y = b / launch.grid[0] % launch.grid[1];
      block->z = b / launch.grid[0] / launch.grid[1];
      block->first_agent = b * agents;
      // Filled with what no kernel should rely on; aligned as shared memory is.
      const uint64_t bytes = code.shared_bytes + launch.dynamic_shared;
      block->shared_memory.assign(bytes + 1024, 0xcd);
      const uint64_t base = reinterpret_cast<uint64_t>(block->shared_memory.data());
      block->shared = block->shared_memory.data() + (1024 - base % 1024) % 1024;
      block->shared_bytes = bytes;
      block->warps.resize(warps);
      for (uint32_t i = 0; i < warps; ++i) PrepareWarp(block->warps[i], block.get(), i);
      grid_.blocks.push_back(std::move(block));
    }
  }

  // For whoever wonders what takes its time.
  std::string Counts() const {
    return Text(rounds_, " rounds, ", worked_, " instructions of warps and ", polled_, " of polls");
  }

  void Run() {
    std::vector<Warp*> warps;
    for (const auto& block : grid_.blocks) {
      for (Warp& warp : block->warps) warps.push_back(&warp);
    }
    std::vector<Warp*> awake;
    uint64_t silent = 0;
    for (uint64_t& round = rounds_; !warps.empty(); ++round) {
      now_ = Now() / grid_.settings.slower;
      awake.clear();
      for (Warp* warp : warps) {
        if (!warp->sleeps || warp->seen != Changes(*warp) || round - warp->since > kNap) awake.push_back(warp);
      }
      bool left = false, advanced = false;
      for (size_t i = 0; i < awake.size(); ++i) {
        std::swap(awake[i], awake[i + grid_.random.Below(static_cast<uint32_t>(awake.size() - i))]);
        Warp& warp = *awake[i];
        const uint64_t in_block = warp.block->changes, in_grid = grid_.changes;
        const uint64_t before = warp.executed;
        warp.again = true;
        warp.sleeps = Turn(warp) && warp.again;
        (warp.sleeps ? polled_ : worked_) += warp.executed - before;
        warp.seen = warp.polls_global ? in_grid : in_block;
        warp.since = round;
        advanced = advanced || (!warp.sleeps && warp.executed - before > kPoll);  // a turn may be too short to tell
        left = left || warp.alive == 0;
      }
      for (const auto& block : grid_.blocks) {
        while (!block->deferred.empty() && grid_.random.Below(3) != 0) {
          RunDeferred(*block, grid_.random.Below(static_cast<uint32_t>(block->deferred.size())));
          advanced = true;
        }
      }
      silent = advanced ? 0 : silent + 1;
      if (silent > kSilent) throw Fault("nothing but polls for " + std::to_string(silent) + " rounds:\n" + Where());
      if (left) std::erase_if(warps, [](const Warp* warp) { return warp->alive == 0; });
    }
    for (const auto& block : grid_.blocks) {
      if (!block->deferred.empty()) throw Fault("a block ended with copies under way: " + Where());
    }
  }

 private:
  static constexpr uint64_t kPoll = 60;  // instructions from one poll to the next of the same wait

  // Of what the warp polled last.
  static uint64_t Changes(const Warp& warp) {
    return warp.polls_global ? warp.block->grid->changes : warp.block->changes;
  }

  // The lanes that go on next: those furthest behind, mostly, so that lanes come together again. Lanes that have polled
  // in this turn wait for the others: they may poll for what those do.
  uint32_t Choose(Warp& warp) {
    const uint32_t ready = warp.alive & ~warp.gathering & ~warp.at_barrier & ~warp.polling;
    if (ready == 0) return 0;
    int pc = 0;
    if (grid_.random.Below(16) == 0) {
      uint32_t skipped = grid_.random.Below(static_cast<uint32_t>(std::popcount(ready)));
      uint32_t lanes = ready;
      for (; skipped > 0; --skipped) lanes &= lanes - 1;
      pc = warp.pc[std::countr_zero(lanes)];
    } else {
      pc = INT32_MAX;
      for (uint32_t lanes = ready; lanes != 0; lanes &= lanes - 1) pc = std::min(pc, warp.pc[std::countr_zero(lanes)]);
    }
    uint32_t chosen = 0;
    for (uint32_t lanes = ready; lanes != 0; lanes &= lanes - 1) {
      const int l = std::countr_zero(lanes);
      if (warp.pc[l] == pc) chosen |= 1u << l;
    }
    return chosen;
  }

  // For some instructions, or until all its lanes have polled or must wait: then true.
  bool Turn(Warp& warp) {
    const uint64_t start = warp.executed;
    for (const uint32_t place : timers_) {
      for (int l = 0; l < kLanes; ++l) warp.At<uint64_t>(place)[l] = now_;
    }
    const uint64_t length = 1 + grid_.random.Below(kTurn);
    warp.polling = 0;
    while (warp.executed - start < length) {
      const uint32_t lanes = Choose(warp);
      if (lanes == 0) {
        if (warp.at_barrier == 0 && warp.gathering != 0 && warp.alive == warp.gathering)
          Fail(warp, warp.code->code[static_cast<size_t>(warp.pc[std::countr_zero(warp.gathering)])],
               "lanes wait for each other at different instructions");
        return true;
      }
      Straight(warp, lanes);
    }
    return false;
  }

  static void SetPc(Warp& warp, uint32_t lanes, int pc) {
    for (; lanes != 0; lanes &= lanes - 1) warp.pc[std::countr_zero(lanes)] = pc;
  }

  // Runs lanes that are at one instruction until they part, come to others, wait or poll.
  void Straight(Warp& warp, uint32_t lanes) {
    const std::vector<Instruction>& code = warp.code->code;
    int pc = warp.pc[std::countr_zero(lanes)];
    // Where others of the warp are, these lanes stop to be joined.
    const uint32_t others = warp.alive & ~lanes & ~warp.gathering & ~warp.at_barrier;
    int count = 0;
    for (;;) {
      if (others != 0 && count > 0) {
        if (count >= 64) break;
        bool meets = false;
        for (uint32_t o = others; o != 0; o &= o - 1) meets = meets || warp.pc[std::countr_zero(o)] == pc;
        if (meets) break;
      }
      if (count >= kTurn) break;
      ++count;
      ++warp.executed;
      if (static_cast<size_t>(pc) >= code.size()) {
        warp.alive &= ~lanes;
        return;
      }
      const Instruction& i = code[static_cast<size_t>(pc)];
      uint32_t active = lanes;
      if (i.guard >= 0) {
        const uint32_t p = warp.Predicate(static_cast<uint32_t>(i.guard));
        active &= i.guard_not ? ~p : p;
      }
      switch (i.flow) {
        case Flow::kNext:
          if (active != 0) i.run(warp, i, active);
          ++pc;
          continue;
        case Flow::kYields:
          if (active != 0) i.run(warp, i, active);
          SetPc(warp, lanes, pc + 1);
          warp.polls_global = i.polls_global;
          warp.again = warp.executed - std::exchange(warp.polled, warp.executed) <= kPoll;
          warp.polling |= lanes;
          return;
        case Flow::kJump:
          if (active == lanes) {
            pc = i.target;
            continue;
          }
          if (active == 0) {
            ++pc;
            continue;
          }
          if (i.uniform) Fail(warp, i, "lanes part at a jump that says they do not (bra.uni)");
          SetPc(warp, active, i.target);
          SetPc(warp, lanes & ~active, pc + 1);
          return;
        case Flow::kTable: {
          bool same = true;
          int target = -1;
          for (uint32_t l = lanes; l != 0; l &= l - 1) {
            const int lane = std::countr_zero(l);
            int to = pc + 1;
            if ((active >> lane & 1) != 0) {
              const uint32_t index = warp.At<uint32_t>(i.a[0])[lane];
              if (index >= i.table.size()) Fail(warp, i, "a jump beyond its table");
              to = i.table[index];
            }
            same = same && (target < 0 || target == to);
            target = to;
            warp.pc[lane] = to;
          }
          if (!same) return;
          pc = target;
          continue;
        }
        case Flow::kExit:
          SetPc(warp, lanes, pc + 1);
          warp.alive &= ~active;
          // Whoever waited for these lanes of the warp waits no longer.
          if (warp.gathering != 0) {
            const int at = warp.pc[std::countr_zero(warp.gathering)];
            Gathered(warp, code[static_cast<size_t>(at)], at);
          }
          return;
        case Flow::kGathers:
        case Flow::kWarp:
          SetPc(warp, lanes, pc);
          SetPc(warp, lanes & ~active, pc + 1);
          warp.gathering |= active;
          if (active != 0) Gathered(warp, i, pc);
          return;
        case Flow::kBarrier:
          SetPc(warp, lanes, pc);
          SetPc(warp, lanes & ~active, pc + 1);
          if (active != 0) AtBarrier(warp, i, active);
          return;
      }
    }
    SetPc(warp, lanes, pc);
  }

  // If the lanes that `i` names are all there they run it.
  void Gathered(Warp& warp, const Instruction& i, int pc) {
    uint32_t here = 0;
    for (uint32_t l = warp.gathering; l != 0; l &= l - 1) {
      const int lane = std::countr_zero(l);
      const bool same = warp.pc[lane] == pc ||
                        (i.flow == Flow::kWarp && warp.code->code[static_cast<size_t>(warp.pc[lane])].flow == Flow::kWarp);
      if (same) here |= 1u << lane;
    }
    for (uint32_t l = here; l != 0; l &= l - 1) {
      const int lane = std::countr_zero(l);
      const Instruction& at = warp.code->code[static_cast<size_t>(warp.pc[lane])];
      const uint32_t members = warp.At<uint32_t>(static_cast<uint32_t>(at.members))[lane] & warp.alive;
      if ((members & ~here) != 0) continue;
      if ((members >> lane & 1) == 0) Fail(warp, i, "a lane that its own mask leaves out");
      i.run(warp, i, members);
      for (uint32_t m = members; m != 0; m &= m - 1) ++warp.pc[std::countr_zero(m)];
      warp.gathering &= ~members;
      return;
    }
  }

  void AtBarrier(Warp& warp, const Instruction& i, uint32_t lanes) {
    const int first = std::countr_zero(lanes);
    const uint32_t id = warp.At<uint32_t>(i.a[0])[first];
    uint32_t expected = warp.At<uint32_t>(i.a[1])[first];
    Block& block = *warp.block;
    if (id >= std::size(block.barriers)) Fail(warp, i, "a barrier that does not exist");
    if (expected == 0) expected = grid_.launch->threads;
    Barrier& barrier = block.barriers[id];
    if (barrier.arrived > 0 && barrier.expected != expected)
      Fail(warp, i, Text("barrier ", id, " expects ", expected, " threads here and ", barrier.expected, " elsewhere"));
    barrier.expected = expected;
    barrier.arrived += static_cast<uint32_t>(std::popcount(lanes));
    if ((i.code & 255) != 0) {
      const uint32_t p = (i.code & 256) != 0 ? ~warp.Predicate(i.a[3]) : warp.Predicate(i.a[3]);
      barrier.votes += static_cast<uint32_t>(std::popcount(p & lanes));
    }
    Release(warp, barrier.clock);
    if (i.bytes != 0) Fail(warp, i, "bar.arrive");
    warp.at_barrier |= lanes;
    for (uint32_t l = lanes; l != 0; l &= l - 1) warp.barrier[std::countr_zero(l)] = static_cast<int>(id);
    if (barrier.arrived > expected) Fail(warp, i, "more threads at a barrier than it expects");
    if (barrier.arrived < expected) return;
    for (Warp& other : block.warps) {
      uint32_t leaves = 0;
      for (uint32_t l = other.at_barrier; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        if (other.barrier[lane] == static_cast<int>(id)) leaves |= 1u << lane;
      }
      if (leaves == 0) continue;
      Acquire(other, barrier.clock);
      for (uint32_t l = leaves; l != 0; l &= l - 1) {
        const int lane = std::countr_zero(l);
        const Instruction& at = other.code->code[static_cast<size_t>(other.pc[lane]++)];
        const uint32_t how = at.code & 255;
        if (how == 0) continue;
        if (how == 1) {
          other.At<uint32_t>(at.a[2])[lane] = barrier.votes;
        } else {
          uint32_t& p = *other.At<uint32_t>(at.a[2]);
          const bool yes = how == 2 ? barrier.votes == expected : barrier.votes > 0;
          p = (p & ~(1u << lane)) | static_cast<uint32_t>(yes) << lane;
        }
      }
      other.at_barrier &= ~leaves;
      other.sleeps = false;
    }
    barrier = Barrier();
  }

  std::string Where() const {
    std::string text;
    for (const auto& block : grid_.blocks) {
      for (const Warp& warp : block->warps) {
        if (warp.alive == 0) continue;
        const int lane = std::countr_zero(warp.alive);
        const size_t pc = static_cast<size_t>(warp.pc[lane]);
        text += Text("  block ", block->x, " warp ", warp.index, " at ", warp.code->module->Place(*warp.code->code[pc].text),
                     (warp.at_barrier >> lane & 1) != 0 ? ", at a barrier\n" : "\n");
      }
    }
    return text;
  }

  Grid grid_;
  std::vector<uint32_t> timers_;
  uint64_t rounds_ = 0, polled_ = 0, worked_ = 0;  // rounds, and instructions
  uint64_t now_ = 0;  // %globaltimer, of a round
};

}  // namespace

void Run(const Launch& launch, GlobalMemory* memory, const Settings& settings) {
  if (launch.threads > static_cast<uint32_t>(std::max(launch.code->max_threads, 1))) throw Fault("too many threads");
  Runner runner(launch, memory, settings);
  runner.Run();
  if (settings.counts) std::fprintf(stderr, "%s: %s\n", launch.code->name.c_str(), runner.Counts().c_str());
}

}  // namespace eventide::machine
