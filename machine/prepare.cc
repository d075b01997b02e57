// A warp before its first instruction: registers, constants, special registers.
#include <algorithm>

#include "machine/machine.h"

namespace eventide::machine {
namespace {

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

}  // namespace

void PrepareWarp(Warp& warp, Block* block, uint32_t index) {
  const Grid& grid = *block->grid;
  const Code& code = *grid.launch->code;
  warp.block = block;
  warp.code = &code;
  warp.index = static_cast<int>(index);
  warp.registers.reset(static_cast<uint8_t*>(std::aligned_alloc(256, (code.register_bytes + 255) / 256 * 256)));
  // Signalling NaNs: a register that is read before it is written shows.
  for (uint64_t i = 0; i + 4 <= code.register_bytes; i += 4) *warp.At<uint32_t>(static_cast<uint32_t>(i)) = 0xffa5a5a5;
  warp.local = std::make_unique<uint8_t[]>(code.local_bytes * kLanes + 1);
  const uint32_t lanes = std::min<uint32_t>(kLanes, grid.launch->threads - index * kLanes);
  warp.alive = lanes == kLanes ? kAllLanes : (1u << lanes) - 1;
  warp.agent = block->first_agent + index;
  warp.clock.assign(grid.engines.size(), 0);
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

}  // namespace eventide::machine
