// What lanes of a warp and warps of a block do together: shuffles, votes, barriers.
#include "machine/decode.h"

namespace eventide::machine {
namespace {

enum Shuffle : uint32_t { kUp, kDown, kButterfly, kIndex };

// a: d, predicate, value, b, c.
void ShuffleLanes(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t value[kLanes];
  std::memcpy(value, w.At<uint32_t>(i.a[2]), sizeof(value));
  const uint32_t *b = w.At<uint32_t>(i.a[3]), *c = w.At<uint32_t>(i.a[4]);
  uint32_t* d = w.At<uint32_t>(i.a[0]);
  uint32_t& p = *w.At<uint32_t>(i.a[1]);
  uint32_t from[kLanes], within = 0;
  ForLanes(lanes, [&](int l) {
    const int clamp = static_cast<int>(c[l] & 31), mask = static_cast<int>(c[l] >> 8 & 31), by = static_cast<int>(b[l] & 31);
    const int last = (l & mask) | (clamp & ~mask), first = l & mask;
    int at = 0;
    bool ok = false;
    switch (i.code) {
      case kUp: at = l - by; ok = at >= last; break;
      case kDown: at = l + by; ok = at <= last; break;
      case kButterfly: at = l ^ by; ok = at <= last; break;
      default: at = first | (by & ~mask); ok = at <= last; break;
    }
    if (!ok) at = l;
    if ((lanes >> at & 1) == 0) Fail(w, i, Text("lane ", l, " shuffles from lane ", at, ", which takes no part"));
    from[l] = static_cast<uint32_t>(at);
    within |= static_cast<uint32_t>(ok) << l;
  });
  p = (p & ~lanes) | within;
  ForLanes(lanes, [&](int l) { d[l] = value[from[l]]; });
}

// code: 0 ballot, 1 any, 2 all, 3 uni.
void Vote(Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t votes = (i.bytes != 0 ? ~w.Predicate(i.a[1]) : w.Predicate(i.a[1])) & lanes;
  if (i.code == 0) {
    uint32_t* d = w.At<uint32_t>(i.a[0]);
    ForLanes(lanes, [&](int l) { d[l] = votes; });
    return;
  }
  uint32_t& d = *w.At<uint32_t>(i.a[0]);
  const bool yes = i.code == 1 ? votes != 0 : i.code == 2 ? votes == lanes : votes == 0 || votes == lanes;
  d = (d & ~lanes) | (yes ? lanes : 0);
}
template <class T>
void MatchAny(Warp& w, const Instruction& i, uint32_t lanes) {
  T value[kLanes];
  std::memcpy(value, w.At<T>(i.a[1]), sizeof(value));
  uint32_t* d = w.At<uint32_t>(i.a[0]);
  ForLanes(lanes, [&](int l) {
    uint32_t same = 0;
    ForLanes(lanes, [&](int k) { same |= static_cast<uint32_t>(value[k] == value[l]) << k; });
    d[l] = same;
  });
}
// code: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor; bytes: signed.
void Reduce(Warp& w, const Instruction& i, uint32_t lanes) {
  const uint32_t* a = w.At<uint32_t>(i.a[1]);
  uint32_t result = 0;
  bool first = true;
  ForLanes(lanes, [&](int l) {
    const uint32_t v = a[l];
    const bool less = i.bytes != 0 ? static_cast<int32_t>(v) < static_cast<int32_t>(result) : v < result;
    if (first) result = v;
    else if (i.code == 0) result += v;
    else if (i.code == 1) result = less ? v : result;
    else if (i.code == 2) result = less ? result : v;
    else if (i.code == 3) result &= v;
    else if (i.code == 4) result |= v;
    else result ^= v;
    first = false;
  });
  uint32_t* d = w.At<uint32_t>(i.a[0]);
  ForLanes(lanes, [&](int l) { d[l] = result; });
}
// The lowest lane, as elect.sync may choose; which one is no kernel's business.
void Elect(Warp& w, const Instruction& i, uint32_t lanes) {
  const int chosen = std::countr_zero(lanes);
  uint32_t* d = w.At<uint32_t>(i.a[0]);
  ForLanes(lanes, [&](int l) { d[l] = static_cast<uint32_t>(chosen); });
  uint32_t& p = *w.At<uint32_t>(i.a[1]);
  p = (p & ~lanes) | 1u << chosen;
}
void ActiveMask(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t* d = w.At<uint32_t>(i.a[0]);
  ForLanes(lanes, [&](int l) { d[l] = lanes; });
}
void Nothing(Warp&, const Instruction&, uint32_t) {}
void Trap(Warp& w, const Instruction& i, uint32_t) { Fail(w, i, "trap"); }

bool DecodeBarrier(Decoder& d) {
  // bar.warp.sync, bar.sync, bar{.cta}.sync, barrier.sync{.aligned}, barrier.red.
  if (d.Has("warp")) {
    d.out.flow = Flow::kWarp;
    d.out.members = static_cast<int>(d.Place(size_t{0}, 4));
    d.out.run = Nothing;
    return true;
  }
  if (!d.Has("sync") && !d.Has("red") && !d.Has("arrive")) return false;
  d.out.flow = Flow::kBarrier;
  d.out.bytes = d.Has("arrive") ? 1 : 0;
  const bool votes = d.Has("red");
  size_t at = votes ? 1 : 0;
  d.out.a[0] = d.Place(at++, 4);
  const size_t left = d.operands() - at - (votes ? 1 : 0);
  d.out.a[1] = left > 0 ? d.Place(at++, 4) : d.Constant(0, 4);
  d.out.code = 0;
  if (votes) {
    // code: 1 popc, 2 and, 3 or; negation in bit 8.
    d.out.code = d.Has("popc") ? 1 : d.Has("and") ? 2 : 3;
    d.out.a[2] = d.Place(size_t{0}, d.Has("popc") ? 4 : 0);
    const bool inverted = d.operand(at)[0] == '!';
    if (inverted) d.out.code |= 256;
    d.out.a[3] = d.Place(d.operand(at).substr(inverted ? 1 : 0), 0);
  }
  d.out.run = Nothing;
  return true;
}

}  // namespace

bool DecodeWarp(Decoder& d) {
  const std::string& op = d.op();
  if (op == "bar" || op == "barrier") return DecodeBarrier(d);
  if (op == "shfl") {
    d.out.flow = Flow::kGathers;
    const auto [first, second] = d.Pair(0);
    d.out.a[0] = d.Sink(first, 4);
    d.out.a[1] = d.Sink(second, 0);
    for (size_t i = 1; i < 4; ++i) d.out.a[i + 1] = d.Place(i, 4);
    d.out.members = static_cast<int>(d.Place(4, 4));
    d.out.code = d.Has("up") ? kUp : d.Has("down") ? kDown : d.Has("bfly") ? kButterfly : kIndex;
    d.out.run = ShuffleLanes;
    return true;
  }
  if (op == "vote") {
    d.out.flow = Flow::kGathers;
    d.out.code = d.Has("ballot") ? 0 : d.Has("any") ? 1 : d.Has("all") ? 2 : 3;
    const bool inverted = d.operand(1)[0] == '!';
    d.out.bytes = inverted ? 1 : 0;
    d.out.a[0] = d.Place(size_t{0}, d.out.code == 0 ? 4 : 0);
    d.out.a[1] = d.Place(d.operand(1).substr(inverted ? 1 : 0), 0);
    d.out.members = static_cast<int>(d.Place(2, 4));
    d.out.run = Vote;
    return true;
  }
  if (op == "match" && d.Has("any")) {
    d.out.flow = Flow::kGathers;
    const int width = Decoder::Width(d.Type());
    d.out.a[0] = d.Place(size_t{0}, 4);
    d.out.a[1] = d.Place(1, width);
    d.out.members = static_cast<int>(d.Place(2, 4));
    d.out.run = width == 4 ? MatchAny<uint32_t> : MatchAny<uint64_t>;
    return true;
  }
  if (op == "redux") {
    d.out.flow = Flow::kGathers;
    d.out.a[0] = d.Place(size_t{0}, 4);
    d.out.a[1] = d.Place(1, 4);
    d.out.members = static_cast<int>(d.Place(2, 4));
    d.out.code = d.Has("add") ? 0 : d.Has("min") ? 1 : d.Has("max") ? 2 : d.Has("and") ? 3 : d.Has("or") ? 4 : 5;
    d.out.bytes = d.Type() == "s32" ? 1 : 0;
    d.out.run = Reduce;
    return true;
  }
  if (op == "elect") {
    d.out.flow = Flow::kGathers;
    const auto [lane, elected] = d.Pair(0);
    d.out.a[0] = d.Sink(lane, 4);
    d.out.a[1] = d.Sink(elected, 0);
    d.out.members = static_cast<int>(d.Place(1, 4));
    d.out.run = Elect;
    return true;
  }
  if (op == "activemask") {
    d.out.a[0] = d.Place(size_t{0}, 4);
    d.out.run = ActiveMask;
    return true;
  }
  if (op == "setmaxnreg") {
    d.out.flow = Flow::kGathers;
    d.out.members = static_cast<int>(d.Constant(kAllLanes, 4));
    d.out.run = Nothing;
    return true;
  }
  if (op == "nanosleep") {
    d.out.flow = Flow::kYields;
    d.out.run = Nothing;
    return true;
  }
  if (op == "trap") {
    d.out.run = Trap;
    return true;
  }
  return false;
}

}  // namespace eventide::machine
