#include "tests/machine/machine.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"

namespace eventide::machine {
namespace {

constexpr int kTurn = 400;        // instructions of a warp at most before others have their turn
constexpr uint64_t kNap = 16;     // rounds after which a warp that polls looks again although nothing has changed: at clocks
constexpr uint64_t kSilent = 2'000'000;  // rounds in which no warp does more than poll: a deadlock

void SetSpecial(Warp& w, const Code::Special& special) {
  const Launch& launch = *w.block->grid->launch;
  const auto all = [&](uint32_t value) {
    for (int l = 0; l < kLanes; ++l) w.At<uint32_t>(special.place)[l] = value;
  };
  const std::string& name = special.name;
  if (name == "%tid.x") {
    for (int l = 0; l < kLanes; ++l) w.At<uint32_t>(special.place)[l] = static_cast<uint32_t>(w.index * kLanes + l);
  } else if (name == "%laneid") {
    for (int l = 0; l < kLanes; ++l) w.At<uint32_t>(special.place)[l] = static_cast<uint32_t>(l);
  } else if (name == "%tid.y" || name == "%tid.z") {
    all(0);
  } else if (name == "%ntid.x") {
    all(launch.threads);
  } else if (name == "%ntid.y" || name == "%ntid.z") {
    all(1);
  } else if (name == "%ctaid.x") {
    all(w.block->x);
  } else if (name == "%ctaid.y") {
    all(w.block->y);
  } else if (name == "%ctaid.z") {
    all(w.block->z);
  } else if (name == "%nctaid.x") {
    all(launch.grid[0]);
  } else if (name == "%nctaid.y") {
    all(launch.grid[1]);
  } else if (name == "%nctaid.z") {
    all(launch.grid[2]);
  } else if (name == "%warpid") {
    all(static_cast<uint32_t>(w.index));
  } else if (name == "%smid") {
    all(w.block->x);
  } else if (name == "%dynamic_smem_size") {
    all(launch.dynamic_shared);
  } else if (name.rfind("sink@", 0) != 0 && name != "%globaltimer" && name != "%clock64") {
    throw Fault("special register " + name);
  }
}

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
      for (uint32_t i = 0; i < warps; ++i) Prepare(block->warps[i], block.get(), i);
      grid_.blocks.push_back(std::move(block));
    }
  }

  // For whoever wonders what takes its time.
  std::string Counts() const {
    return absl::StrFormat("%d rounds, %d instructions of warps and %d of polls", rounds_, worked_, polled_);
  }

  void Run() {
    std::vector<Warp*> warps;
    for (const auto& block : grid_.blocks) {
      for (Warp& warp : block->warps) warps.push_back(&warp);
    }
    std::vector<Warp*> awake;
    uint64_t silent = 0;
    for (uint64_t& round = rounds_; !warps.empty(); ++round) {
      now_ = Now();
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
        advanced = advanced || !warp.sleeps;
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

  void Prepare(Warp& warp, Block* block, uint32_t index) {
    const Code& code = *grid_.launch->code;
    warp.block = block;
    warp.code = &code;
    warp.index = static_cast<int>(index);
    warp.registers.reset(new (std::align_val_t{64}) uint8_t[code.register_bytes]);
    // Signalling NaNs: a register that is read before it is written shows.
    for (uint64_t i = 0; i + 4 <= code.register_bytes; i += 4) *warp.At<uint32_t>(static_cast<uint32_t>(i)) = 0xffa5a5a5;
    warp.local = std::make_unique<uint8_t[]>(code.local_bytes * kLanes + 1);
    const uint32_t lanes = std::min<uint32_t>(kLanes, grid_.launch->threads - index * kLanes);
    warp.alive = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
    warp.agent = block->first_agent + index;
    warp.clock.assign(grid_.engines.size(), 0);
    warp.clock[warp.agent] = 1;
    for (const Code::Constant& constant : code.constants) {
      for (int l = 0; l < kLanes; ++l) {
        switch (constant.width) {
          case 0: *warp.At<uint32_t>(constant.place) = static_cast<uint32_t>(constant.bits); break;
          case 2: warp.At<uint16_t>(constant.place)[l] = static_cast<uint16_t>(constant.bits); break;
          case 4: warp.At<uint32_t>(constant.place)[l] = static_cast<uint32_t>(constant.bits); break;
          default: warp.At<uint64_t>(constant.place)[l] = constant.bits;
        }
      }
    }
    for (const Code::Special& special : code.specials) SetSpecial(warp, special);
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
          return;
        case Flow::kGathers:
        case Flow::kWarp:
          if (active != lanes) Fail(warp, i, "some lanes leave out what all must run");
          SetPc(warp, lanes, pc);
          warp.gathering |= lanes;
          Gathered(warp, i, pc);
          return;
        case Flow::kBarrier:
          if (active != lanes) Fail(warp, i, "some lanes leave out a barrier");
          SetPc(warp, lanes, pc);
          AtBarrier(warp, i, lanes);
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
    if (expected == 0) expected = (grid_.launch->threads + kLanes - 1) / kLanes * kLanes;
    Barrier& barrier = block.barriers[id];
    if (barrier.arrived > 0 && barrier.expected != expected)
      Fail(warp, i, absl::StrFormat("barrier %d expects %d threads here and %d elsewhere", id, expected, barrier.expected));
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
        absl::StrAppendFormat(&text, "  block %d warp %d at %s%s\n", block->x, warp.index,
                              warp.code->module->Place(*warp.code->code[pc].text), (warp.at_barrier >> lane & 1) != 0 ? ", at a barrier" : "");
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

void Fail(const Warp& warp, const Instruction& at, const std::string& what) {
  std::string line = at.text->opcode;
  for (const std::string& operand : at.text->operands) line += " " + operand;
  throw Fault(absl::StrFormat("%s, block %d, warp %d, %s, %s: %s", warp.code->name, warp.block->x, warp.index,
                              warp.code->module->Place(*at.text), line, what));
}

namespace {

std::string RaceOf(const Grid& grid, const Race& race) {
  const uint32_t warps = static_cast<uint32_t>(grid.blocks[0]->warps.size()), agents = warps + kEngines,
                 block = race.other / agents, local = race.other % agents;
  return absl::StrFormat("a race: it %s %s of block %d %s at %s", race.kind, local < warps ? "warp" : "copy engine", block,
                         local < warps ? absl::StrFormat("%d", local) : "",
                         grid.launch->code->module->Place(*static_cast<const PtxStatement*>(race.where)));
}

}  // namespace

uint8_t* SharedAt(Warp& warp, uint32_t address, uint32_t bytes, Access access, const Instruction& at) {
  Block& block = *warp.block;
  const Grid& grid = *block.grid;
  if (uint64_t{address} + bytes > block.shared_bytes)
    Fail(warp, at, absl::StrFormat("%d bytes at %d of shared memory, which has %d", bytes, address, block.shared_bytes));
  if (grid.settings.races && access <= Access::kWrite) {
    const Race race = access == Access::kRead
                                 ? block.shadow.Read(address, bytes, warp.agent, warp.clock, at.text)
                                 : block.shadow.Write(address, bytes, warp.agent, warp.clock, at.text);
    if (race.kind != nullptr) Fail(warp, at, absl::StrFormat("shared address %d: %s", address, RaceOf(grid, race)));
  }
  return block.shared + address;
}

uint8_t* GlobalAt(Warp& warp, uint64_t address, uint32_t bytes, Access access, const Instruction& at) {
  Grid& grid = *warp.block->grid;
  if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && address % bytes != 0)
    Fail(warp, at, absl::StrFormat("%d bytes at %#x, which is not aligned", bytes, address));
  const uint64_t window = address - reinterpret_cast<uint64_t>(warp.block->shared);
  if (window < warp.block->shared_bytes) return SharedAt(warp, static_cast<uint32_t>(window), bytes, access, at);
  const std::vector<uint8_t>& params = grid.launch->params;
  if (address - reinterpret_cast<uint64_t>(params.data()) < params.size()) return reinterpret_cast<uint8_t*>(address);
  if (address < grid.first || address + bytes > grid.last) {
    std::tie(grid.first, grid.last) = grid.memory->Block(address);
    if (address < grid.first || address + bytes > grid.last)
      Fail(warp, at, absl::StrFormat("%d bytes at %#x, which is in no allocation", bytes, address));
  }
  if (grid.settings.races && access <= Access::kWrite) {
    const Race race = access == Access::kRead
                                 ? grid.shadow.Read(address, bytes, warp.agent, warp.clock, at.text)
                                 : grid.shadow.Write(address, bytes, warp.agent, warp.clock, at.text);
    if (race.kind != nullptr) Fail(warp, at, absl::StrFormat("global address %#x: %s", address, RaceOf(grid, race)));
  }
  return reinterpret_cast<uint8_t*>(address);
}

void Release(Warp& warp, Clock& handed) {
  Join(handed, warp.clock);
  ++warp.clock[warp.agent];
}

void Acquire(Warp& warp, const Clock& handed) { Join(warp.clock, handed); }

void Run(const Launch& launch, GlobalMemory* memory, const Settings& settings) {
  if (launch.threads > static_cast<uint32_t>(std::max(launch.code->max_threads, 1))) throw Fault("too many threads");
  Runner runner(launch, memory, settings);
  runner.Run();
  if (settings.counts) std::fprintf(stderr, "%s: %s\n", launch.code->name.c_str(), runner.Counts().c_str());
}

}  // namespace eventide::machine
