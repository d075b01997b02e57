// What cuTensorMapEncodeTiled of this machine writes, and how a box of a tensor lies in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "machine/machine.h"

namespace eventide::machine {

struct TensorMap {
  uint64_t magic, address;
  uint32_t element_bytes, rank;
  uint64_t dims[5], strides[5];  // strides in bytes, of all dims
  uint32_t box[5];
};
static_assert(sizeof(TensorMap) <= 128);
inline constexpr uint64_t kTensorMapMagic = 0x70616d726f736e74;

// The rows of a box that begins at `at`: what lies beyond the tensor is zeros.
inline std::vector<Warp::Piece> PiecesOf(const TensorMap& map, const int32_t (&at)[5], uint32_t to) {
  if (map.magic != kTensorMapMagic) throw Fault("a box without a tensor map");
  std::vector<Warp::Piece> pieces;
  const uint32_t row = map.box[0] * map.element_bytes;
  uint32_t index[5] = {};
  for (bool more = true; more;) {
    uint64_t from = map.address;
    bool inside = at[0] >= 0 && static_cast<uint64_t>(at[0]) < map.dims[0];
    for (int k = 0; k < 5; ++k) {
      const int64_t place = int64_t{at[k]} + index[k];
      inside = inside && place >= 0 && static_cast<uint64_t>(place) < map.dims[k];
      from += static_cast<uint64_t>(place) * map.strides[k];
    }
    const uint64_t left = inside ? (map.dims[0] - static_cast<uint64_t>(at[0])) * map.element_bytes : 0;
    pieces.push_back({to, inside ? from : map.address, row, static_cast<uint32_t>(left < row ? left : row)});
    to += row;
    more = false;
    for (int k = 1; k < 5 && !more; ++k) {
      more = ++index[k] < map.box[k];
      if (!more) index[k] = 0;
    }
  }
  return pieces;
}

}  // namespace eventide::machine
