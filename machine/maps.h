// Instructions as functions of lanes: what arithmetic.cc, compare.cc and convert.cc are made of.
#pragma once

#include <string>
#include <type_traits>

#include "machine/decode.h"

namespace eventide::machine {

// f: of one operand of each type of S, of a lane.
template <class D, class F, class S>
void Map1(Warp& w, const Instruction& i, uint32_t lanes) {
  D* d = w.At<D>(i.a[0]);
  const S* a = w.At<S>(i.a[1]);
  ForLanes(lanes, [&](int l) { d[l] = F()(a[l]); });
}
template <class D, class F, class S, class S2 = S>
void Map2(Warp& w, const Instruction& i, uint32_t lanes) {
  D* d = w.At<D>(i.a[0]);
  const S* a = w.At<S>(i.a[1]);
  const S2* b = w.At<S2>(i.a[2]);
  ForLanes(lanes, [&](int l) { d[l] = F()(a[l], b[l]); });
}
template <class D, class F, class S, class S3 = S>
void Map3(Warp& w, const Instruction& i, uint32_t lanes) {
  D* d = w.At<D>(i.a[0]);
  const S *a = w.At<S>(i.a[1]), *b = w.At<S>(i.a[2]);
  const S3* c = w.At<S3>(i.a[3]);
  ForLanes(lanes, [&](int l) { d[l] = F()(a[l], b[l], c[l]); });
}

// Calls f with a value of the type that PTX calls so; bits are unsigned.
template <class F>
bool OfType(const std::string& type, const F& f) {
  if (type == "u8" || type == "b8") return f(uint8_t{}), true;
  if (type == "s8") return f(int8_t{}), true;
  if (type == "u16" || type == "b16") return f(uint16_t{}), true;
  if (type == "s16") return f(int16_t{}), true;
  if (type == "u32" || type == "b32") return f(uint32_t{}), true;
  if (type == "s32") return f(int32_t{}), true;
  if (type == "u64" || type == "b64") return f(uint64_t{}), true;
  if (type == "s64") return f(int64_t{}), true;
  if (type == "f32") return f(float{}), true;
  if (type == "f64") return f(double{}), true;
  return false;
}
// A register moved, or a conversion that changes nothing.
struct Same {
  template <class T>
  T operator()(T a) const {
    return a;
  }
};

// Predicates are masks of lanes.
inline void SetLanes(uint32_t& predicate, uint32_t lanes, uint32_t values) {
  predicate = (predicate & ~lanes) | (values & lanes);
}

}  // namespace eventide::machine
