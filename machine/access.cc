// Memory as instructions reach it: within bounds, aligned, in no race.
#include <tuple>

#include "machine/machine.h"

namespace eventide::machine {

void Fail(const Warp& warp, const Instruction& at, const std::string& what) {
  std::string line = at.text->opcode;
  for (const std::string& operand : at.text->operands) line += " " + operand;
  throw Fault(Text(warp.code->name, ", block ", warp.block->x, ", warp ", warp.index, ", ",
                   warp.code->module->Place(*at.text), ", ", line, ": ", what));
}

namespace {

std::string RaceOf(const Grid& grid, const Race& race) {
  const uint32_t warps = static_cast<uint32_t>(grid.blocks[0]->warps.size()), agents = warps + kEngines,
                 block = race.other / agents, local = race.other % agents;
  return Text("a race: it ", race.kind, " ", local < warps ? Text("warp ", local) : "a copy engine", " of block ", block, " at ",
              grid.launch->code->module->Place(*static_cast<const PtxStatement*>(race.where)));
}

void CheckAlignment(const Warp& warp, uint64_t address, uint32_t bytes, const Instruction& at) {
  if (bytes <= 16 && (bytes & (bytes - 1)) == 0 && address % bytes != 0)
    Fail(warp, at, Text(bytes, " bytes at ", Hex{address}, ", which is not aligned"));
}

}  // namespace

uint8_t* SharedAt(Warp& warp, uint32_t address, uint32_t bytes, Access access, const Instruction& at) {
  Block& block = *warp.block;
  const Grid& grid = *block.grid;
  CheckAlignment(warp, address, bytes, at);
  if (uint64_t{address} + bytes > block.shared_bytes)
    Fail(warp, at, Text(bytes, " bytes at ", address, " of shared memory, which has ", block.shared_bytes));
  if (grid.settings.races && access <= Access::kWrite) {
    const Race race = access == Access::kRead
                                 ? block.shadow.Read(address, bytes, warp.agent, warp.clock, at.text)
                                 : block.shadow.Write(address, bytes, warp.agent, warp.clock, at.text);
    if (race.kind != nullptr) Fail(warp, at, Text("shared address ", address, ": ", RaceOf(grid, race)));
  }
  return block.shared + address;
}

uint8_t* GlobalAt(Warp& warp, uint64_t address, uint32_t bytes, Access access, const Instruction& at) {
  Grid& grid = *warp.block->grid;
  CheckAlignment(warp, address, bytes, at);
  const uint64_t window = address - reinterpret_cast<uint64_t>(warp.block->shared);
  if (window < warp.block->shared_bytes) return SharedAt(warp, static_cast<uint32_t>(window), bytes, access, at);
  const std::vector<uint8_t>& params = grid.launch->params;
  if (address - reinterpret_cast<uint64_t>(params.data()) < params.size()) return reinterpret_cast<uint8_t*>(address);
  if (address < grid.first || address > grid.last || bytes > grid.last - address) {
    std::tie(grid.first, grid.last) = grid.memory->Block(address);
    if (address < grid.first || address > grid.last || bytes > grid.last - address)
      Fail(warp, at, Text(bytes, " bytes at ", Hex{address}, ", which is in no allocation"));
  }
  if (grid.settings.races && access <= Access::kWrite) {
    const Race race = access == Access::kRead
                                 ? grid.shadow.Read(address, bytes, warp.agent, warp.clock, at.text)
                                 : grid.shadow.Write(address, bytes, warp.agent, warp.clock, at.text);
    if (race.kind != nullptr) Fail(warp, at, Text("global address ", Hex{address}, ": ", RaceOf(grid, race)));
  }
  return reinterpret_cast<uint8_t*>(address);
}

void Release(Warp& warp, Clock& handed) {
  Join(handed, warp.clock);
  ++warp.clock[warp.agent];
}

void Acquire(Warp& warp, const Clock& handed) { Join(warp.clock, handed); }

}  // namespace eventide::machine
