// A machine that runs kernels of PTX on the CPU: thread blocks of warps of 32 lanes, shared memory, barriers, copy
// engines, tensor cores. One host thread runs all warps of a launch in a random order that a seed decides, so that what
// it finds can be found again. It is for finding faults: of memory (bounds, races in shared memory), of barriers
// (deadlocks, too many arrivals), of order (copies land late, in any order). It is no model of a GPU's speed, nor of its
// weak memory: global memory is sequentially consistent.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine/ptx_text.h"
#include "machine/shadow.h"

namespace eventide::machine {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// A message of parts.
struct Hex {
  uint64_t value;
};
inline std::ostream& operator<<(std::ostream& out, Hex hex) { return out << std::hex << "0x" << hex.value << std::dec; }
template <class... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

struct Warp;
struct Instruction;

// What a kernel did that it must not.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

using Handler = void (*)(Warp&, const Instruction&, uint32_t lanes);

enum class Flow : uint8_t {
  kNext,
  kYields,   // a poll: let others run
  kJump,
  kTable,    // brx.idx
  kExit,
  kGathers,  // needs all lanes that operand `members` names at this instruction
  kWarp,     // bar.warp.sync: lanes gather at any of its kind
  kBarrier,  // of the block
};

struct Instruction {
  Handler run = nullptr;
  Flow flow = Flow::kNext;
  bool guard_not = false;
  bool uniform = false;       // bra.uni: all lanes that are there go the same way
  bool polls_global = false;  // of kYields
  int guard = -1;  // a predicate's place
  // Places of operands in a warp's registers. Which is which is the handler's business.
  uint32_t a[8] = {};
  std::vector<uint32_t> many;  // where there are more
  int64_t offset = 0;          // of an address, and of the second and third of a copy
  int64_t from_offset = 0, barrier_offset = 0;
  uint32_t code = 0, bytes = 0;
  int members = -1;  // of kGathers and kWarp: the place of the lanes' mask, or all
  int target = -1;
  std::vector<int> table;
  const PtxStatement* text = nullptr;
};

// A kernel, ready to run.
struct Code {
  std::string name;
  std::vector<Instruction> code;
  uint64_t register_bytes = 0;
  struct Constant {
    uint32_t place;
    int width;  // bytes of a lane; 0: a predicate
    uint64_t bits;
  };
  std::vector<Constant> constants;
  struct Special {
    uint32_t place;
    std::string name;
  };
  std::vector<Special> specials;
  uint64_t param_bytes = 0, shared_bytes = 0, local_bytes = 0;
  std::vector<std::pair<uint64_t, uint64_t>> params;  // offset and size
  int max_threads = 0;
  std::shared_ptr<const PtxModule> module;
};

std::shared_ptr<const Code> Decode(std::shared_ptr<const PtxModule> module, const PtxKernel& kernel,
                                   const std::map<std::string, uint64_t>& globals);

// What the machine's global memory is: allocations, which every access must lie in.
class GlobalMemory {
 public:
  void Add(uint64_t address, uint64_t bytes) { blocks_[address] = bytes; }
  bool Remove(uint64_t address) { return blocks_.erase(address) != 0; }
  bool Has(uint64_t address, uint64_t bytes) const {
    auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin()) return false;
    --next;
    return address - next->first + bytes <= next->second;
  }
  // The allocation that holds an address: [first, last).
  std::pair<uint64_t, uint64_t> Block(uint64_t address) const {
    auto next = blocks_.upper_bound(address);
    if (next == blocks_.begin()) return {0, 0};
    --next;
    return {next->first, next->first + next->second};
  }
  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& [address, bytes] : blocks_) sum += bytes;
    return sum;
  }

 private:
  std::map<uint64_t, uint64_t> blocks_;
};

struct Grid;
struct Block;

// Of a block, whose copies finish in any order. Two that are as many copies apart are one agent to the race detector.
inline constexpr uint32_t kEngines = 32;

struct FreeMemory {
  void operator()(uint8_t* memory) const { std::free(memory); }
};

struct Warp {
  Block* block = nullptr;
  const Code* code = nullptr;
  int index = 0;
  std::unique_ptr<uint8_t, FreeMemory> registers;  // aligned to 256
  std::unique_ptr<uint8_t[]> local;  // [lane][bytes]
  uint32_t alive = 0;
  uint32_t gathering = 0;             // lanes that wait for others of the warp
  uint32_t polling = 0;               // lanes that have polled in this turn
  uint32_t at_barrier = 0;            // lanes that wait for others of the block
  int pc[kLanes] = {};
  int barrier[kLanes] = {};
  uint64_t polled = 0;                // when, in instructions, it polled last
  bool again = false;                 // and shortly before, too
  bool polls_global = false;          // what it polled last is in global memory
  bool sleeps = false;                // its last turn was no more than a poll
  uint64_t seen = 0, since = 0;       // what had changed then, and the round
  uint64_t executed = 0;
  uint32_t agent = 0;
  Clock clock;
  // cp.async that has not been put under way, by lane.
  struct Piece {
    uint32_t to;
    uint64_t from;
    uint32_t bytes, read;
  };
  std::vector<Piece> pieces[kLanes];
  // wgmma under way: what it reads of shared memory, and how that looked when it was issued.
  struct Product {
    std::vector<std::pair<uint32_t, uint32_t>> reads;  // address and bytes
    uint64_t sum = 0;
    int group = 0;
  };
  std::vector<Product> products;
  int groups = 0;  // committed so far

  template <class T>
  T* At(uint32_t place) const {
    return reinterpret_cast<T*>(registers.get() + place);
  }
  uint32_t Predicate(uint32_t place) const { return *At<uint32_t>(place); }
};

// A copy, or arrivals, that happen some time after the instruction.
struct Deferred {
  Clock clock;         // when it was issued, its engine's own included
  uint32_t agent = 0;  // the engine
  std::vector<Warp::Piece> pieces;
  std::vector<uint32_t> poisoned;  // words of shared memory that become NaN: read in a race
  uint64_t map = 0;  // of a box: its tensor map and where it begins
  int32_t at[5] = {};
  uint32_t to = 0;
  uint32_t barrier = 0;
  bool arrives = false;  // at the barrier, and not bytes
};

struct Barrier {
  uint32_t expected = 0, arrived = 0;
  uint32_t votes = 0;
  Clock clock;
};

struct Block {
  Grid* grid = nullptr;
  uint32_t x = 0, y = 0, z = 0;
  std::vector<uint8_t> shared_memory;
  uint8_t* shared = nullptr;
  uint64_t shared_bytes = 0;
  std::vector<Warp> warps;
  Barrier barriers[16];
  std::vector<Deferred> deferred;
  uint32_t first_agent = 0;  // its warps, then its engines
  uint32_t next_engine = 0;
  uint64_t changes = 0;  // of what a warp of this block may poll in shared memory
  Shadow shadow;
  std::map<uint32_t, Clock> handed;  // by address of a word that releases go through
  // Of an mbarrier: what arrivals of the phase that goes on hand over, and those of the last one that is complete.
  struct Phases {
    Clock pending, complete;
  };
  std::map<uint32_t, Phases> phases;
};

struct Launch {
  std::shared_ptr<const Code> code;
  uint32_t grid[3] = {1, 1, 1}, threads = 1, dynamic_shared = 0;
  std::vector<uint8_t> params;
};

struct Settings {
  uint64_t seed = 0;
  bool races = true;
  uint32_t slower = 10;  // %globaltimer is so much slower than the clock: a step may take as many times longer
  bool counts = false;  // to stderr, of every launch
};

// xorshift64*: quick, and the same everywhere.
class Random {
 public:
  void Seed(uint64_t seed) { state_ = seed * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d; }
  uint32_t operator()() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return static_cast<uint32_t>(state_ * 0x2545f4914f6cdd1d >> 32);
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(uint64_t{(*this)()} * n >> 32); }

 private:
  uint64_t state_ = 1;
};

struct Grid {
  const Launch* launch = nullptr;
  GlobalMemory* memory = nullptr;
  Settings settings;
  Random random;
  std::vector<std::unique_ptr<Block>> blocks;
  uint64_t changes = 0;  // as Block's, of global memory
  Shadow shadow;
  std::map<uint64_t, Clock> handed;  // as Block's, of global memory
  Clock engines;  // epochs of copy engines, by agent
  uint64_t first = 0, last = 0;  // of the allocation that was used last
};

// Runs a launch to its end. Throws Fault.
void Run(const Launch& launch, GlobalMemory* memory, const Settings& settings);

// Gives a warp its registers and its agent; `index` is among the block's warps.
void PrepareWarp(Warp& warp, Block* block, uint32_t index);

// Memory of an instruction, bounds and alignment checked; of an ordinary access also races. A generic address may be of
// shared memory.
enum class Access : uint8_t { kRead, kWrite, kSynchronises };  // the last is in no race, as is a look
uint8_t* SharedAt(Warp& warp, uint32_t address, uint32_t bytes, Access access, const Instruction& at);
uint8_t* GlobalAt(Warp& warp, uint64_t address, uint32_t bytes, Access access, const Instruction& at);
// What a release hands over at an address, and an acquire takes.
void Release(Warp& warp, Clock& handed);
void Acquire(Warp& warp, const Clock& handed);

// Something that happens later, at a random time.
void Defer(Warp& warp, Deferred deferred, const Instruction& at);
void RunDeferred(Block& block, size_t index);

[[noreturn]] void Fail(const Warp& warp, const Instruction& at, const std::string& what);

// What decode.cc finds handlers of the families with; null: not of this family.
struct Decoder;
bool DecodeArithmetic(Decoder& d);
bool DecodeCompare(Decoder& d);
bool DecodeMoves(Decoder& d);
bool DecodeMemory(Decoder& d);
bool DecodeWarp(Decoder& d);
bool DecodeAsync(Decoder& d);
bool DecodeTensor(Decoder& d);

}  // namespace eventide::machine
