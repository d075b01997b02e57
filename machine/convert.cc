// Conversions and moves of registers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/dtype.h"
#include "machine/maps.h"

namespace eventide::machine {
namespace {

// Conversions. Registers may be wider than what is converted: then their low bits count.
template <class T>
float FromStorage(uint16_t bits) {
  T value;
  std::memcpy(&value, &bits, 2);
  return ToFloat(value);
}
template <class T>
uint16_t ToStorage(float value) {
  const T stored = Storage<T>::From(value);
  uint16_t bits;
  std::memcpy(&bits, &stored, 2);
  return bits;
}
enum Rounding : uint32_t { kNearest, kZero, kDown, kUp };

double Round(double value, uint32_t how) {
  switch (how) {
    case kNearest: return std::nearbyint(value);
    case kZero: return std::trunc(value);
    case kDown: return std::floor(value);
    default: return std::ceil(value);
  }
}
template <class D, class S>
D ConvertOne(S a, uint32_t how, bool saturates) {
  if constexpr (std::is_floating_point_v<D> && std::is_floating_point_v<S>) {
    if (how != 0) a = static_cast<S>(Round(static_cast<double>(a), how - 1));
    if (saturates) a = std::isnan(a) ? S{0} : std::clamp(a, S{0}, S{1});
    return static_cast<D>(a);
  } else if constexpr (std::is_floating_point_v<D>) {
    return static_cast<D>(a);
  } else if constexpr (std::is_floating_point_v<S>) {
    if (std::isnan(a)) return sizeof(D) == 8 ? static_cast<D>(uint64_t{1} << 63) : D{0};
    const double r = Round(static_cast<double>(a), how == 0 ? 1 : how - 1);
    if (r <= static_cast<double>(std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    if (r >= static_cast<double>(std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
    return static_cast<D>(r);
  } else {
    return static_cast<D>(a);
  }
}
// `code`: rounding to integers plus one, or 0; bytes: the widths of both registers, and whether it saturates.
template <class D, class S>
void Convert(Warp& w, const Instruction& i, uint32_t lanes) {
  const int to = static_cast<int>(i.bytes & 0xff), from = static_cast<int>(i.bytes >> 8 & 0xff);
  const uint8_t* a = w.At<uint8_t>(i.a[1]);
  uint8_t* d = w.At<uint8_t>(i.a[0]);
  ForLanes(lanes, [&](int l) {
    S value;
    std::memcpy(&value, a + l * from, sizeof(S));
    const D result = ConvertOne<D, S>(value, i.code, (i.bytes >> 16) != 0);
    if (static_cast<size_t>(to) == sizeof(D)) {
      std::memcpy(d + l * to, &result, sizeof(D));
    } else if constexpr (std::is_integral_v<D>) {  // extended to the register
      const int64_t wide = static_cast<int64_t>(result);
      std::memcpy(d + l * to, &wide, static_cast<size_t>(to));
    }
  });
}
template <class T>
struct FromFloat16 {
  float operator()(uint16_t a) const { return FromStorage<T>(a); }
};
template <class T>
struct ToFloat16 {
  uint16_t operator()(float a) const { return ToStorage<T>(a); }
};
// The first source goes to the high half.
template <class T>
struct ToPair {
  uint32_t operator()(float high, float low) const {
    return static_cast<uint32_t>(ToStorage<T>(high)) << 16 | ToStorage<T>(low);
  }
};

bool DecodeConvert(Decoder& d) {
  const std::string to = d.Type(1), from = d.Type(0);
  const bool to_integer = to.find('f') == std::string::npos;
  if (d.Has("relu") || d.Has("rz") || d.Has("rm") || d.Has("rp") || (d.Has("sat") && to_integer)) return false;
  const bool to_pair = to == "bf16x2" || to == "f16x2";
  const bool brain = to == "bf16x2" || to == "bf16" || from == "bf16";
  if (to_pair) {
    d.out.a[0] = d.Place(size_t{0}, 4);
    d.out.a[1] = d.Place(1, 4);
    d.out.a[2] = d.Place(2, 4);
    d.out.run = brain ? Map2<uint32_t, ToPair<BF16>, float> : Map2<uint32_t, ToPair<F16>, float>;
    return true;
  }
  if (to == "bf16" || to == "f16") {
    if (from != "f32") return false;
    d.out.a[0] = d.Place(size_t{0}, 2);
    d.out.a[1] = d.Place(1, 4);
    d.out.run = brain ? Map1<uint16_t, ToFloat16<BF16>, float> : Map1<uint16_t, ToFloat16<F16>, float>;
    return true;
  }
  if (from == "bf16" || from == "f16") {
    if (to != "f32") return false;
    d.out.a[0] = d.Place(size_t{0}, 4);
    d.out.a[1] = d.Place(1, 2);
    d.out.run = brain ? Map1<float, FromFloat16<BF16>, uint16_t> : Map1<float, FromFloat16<F16>, uint16_t>;
    return true;
  }
  const auto width = [&](size_t i, const std::string& type) {
    const int own = d.RegisterWidth(d.operand(i));
    return own > 0 ? own : Decoder::Width(type);
  };
  const int to_width = width(0, to), from_width = width(1, from);
  d.out.a[0] = d.Place(size_t{0}, to_width);
  d.out.a[1] = d.Place(1, from_width);
  d.out.bytes = static_cast<uint32_t>(to_width | from_width << 8 | (d.Has("sat") ? 1 << 16 : 0));
  d.out.code = d.Has("rni") ? 1 + kNearest : d.Has("rzi") ? 1 + kZero : d.Has("rmi") ? 1 + kDown : d.Has("rpi") ? 1 + kUp : 0;
  return OfType(to, [&]<class D>(D) {
    OfType(from, [&]<class S>(S) { d.out.run = Convert<D, S>; });
  });
}

void LogicMove(Warp& w, const Instruction& i, uint32_t lanes) {
  SetLanes(*w.At<uint32_t>(i.a[0]), lanes, w.Predicate(i.a[1]));
}

// mov: of registers, and to and from vectors of them.
template <class T>
void Move(Warp& w, const Instruction& i, uint32_t lanes) {
  Map1<T, Same, T>(w, i, lanes);
}
// many: the parts' places from the low one; bytes: of a part; a[0]: the whole.
template <class Whole, class Part, bool kJoins>
void MoveParts(Warp& w, const Instruction& i, uint32_t lanes) {
  Whole* whole = w.At<Whole>(i.a[0]);
  if (kJoins) {
    Whole joined[kLanes] = {};
    for (size_t p = 0; p < i.many.size(); ++p) {
      const Part* part = w.At<Part>(i.many[p]);
      for (int l = 0; l < kLanes; ++l) joined[l] |= static_cast<Whole>(static_cast<Whole>(part[l]) << (p * 8 * sizeof(Part)));
    }
    ForLanes(lanes, [&](int l) { whole[l] = joined[l]; });
    return;
  }
  Whole copy[kLanes];
  std::memcpy(copy, whole, sizeof(copy));
  for (size_t p = 0; p < i.many.size(); ++p) {
    Part* part = w.At<Part>(i.many[p]);
    ForLanes(lanes, [&](int l) { part[l] = static_cast<Part>(copy[l] >> (p * 8 * sizeof(Part))); });
  }
}
bool DecodeMove(Decoder& d) {
  const std::string type = d.Type();
  if (type == "pred") {
    d.out.a[0] = d.Place(size_t{0}, 0);
    d.out.a[1] = d.Place(1, 0);
    d.out.run = LogicMove;
    return true;
  }
  const int width = Decoder::Width(type);
  const bool joins = d.operand(1)[0] == '{', parts = joins || d.operand(0)[0] == '{';
  if (!parts) {
    d.out.a[0] = d.Place(size_t{0}, width);
    d.out.a[1] = d.Place(1, width);
    d.out.run = width == 2 ? Move<uint16_t> : width == 4 ? Move<uint32_t> : Move<uint64_t>;
    return true;
  }
  const std::vector<std::string> names = d.Vector(joins ? 1 : 0);
  const int part = width / static_cast<int>(names.size());
  d.out.a[0] = d.Place(joins ? 0 : 1, width);
  for (const std::string& name : names) d.out.many.push_back(d.Sink(name, part));
  if (width == 8 && part == 4) d.out.run = joins ? MoveParts<uint64_t, uint32_t, true> : MoveParts<uint64_t, uint32_t, false>;
  if (width == 8 && part == 2) d.out.run = joins ? MoveParts<uint64_t, uint16_t, true> : MoveParts<uint64_t, uint16_t, false>;
  if (width == 4 && part == 2) d.out.run = joins ? MoveParts<uint32_t, uint16_t, true> : MoveParts<uint32_t, uint16_t, false>;
  return d.out.run != nullptr;
}

}  // namespace

bool DecodeMoves(Decoder& d) {
  if (d.op() == "cvt") return DecodeConvert(d);
  if (d.op() == "mov") return DecodeMove(d);
  return false;
}

}  // namespace eventide::machine
