// Elements that lie next to each other, loaded and stored by one instruction.
#pragma once

#include "device/base.h"

namespace eventide {

template <class E, i32 n>
struct alignas(n * sizeof(E)) Neighbours {
  E at[n];
  static EVT_FN Neighbours Of(const E* from) { return *reinterpret_cast<const Neighbours*>(from); }
  EVT_FN void To(E* to) const { *reinterpret_cast<Neighbours*>(to) = *this; }
};
template <class E>
using Two = Neighbours<E, 2>;
template <class E>
using Four = Neighbours<E, 4>;

}  // namespace eventide
