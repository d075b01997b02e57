// Instructions that work on registers alone.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "device/dtype.h"
#include "tests/machine/decode.h"

namespace eventide::machine {
namespace {

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
template <class T>
using Unsigned = std::make_unsigned_t<std::conditional_t<std::is_integral_v<T>, T, int>>;

// Integers wrap.
struct Add {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    else return a + b;
  }
};
struct Sub {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
    else return a - b;
  }
};
struct Mul {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    else return a * b;
  }
};
struct MulHigh {
  template <class T>
  T operator()(T a, T b) const {
    using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b) >> (8 * sizeof(T)));
  }
};
template <class D>
struct MulWide {
  template <class T>
  D operator()(T a, T b) const {
    return static_cast<D>(static_cast<D>(a) * static_cast<D>(b));
  }
};
struct Mad {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add()(Mul()(a, b), c);
  }
};
struct MadHigh {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add()(MulHigh()(a, b), c);
  }
};
template <class D>
struct MadWide {
  template <class T>
  D operator()(T a, T b, D c) const {
    return Add()(MulWide<D>()(a, b), c);
  }
};
struct Fma {
  float operator()(float a, float b, float c) const { return std::fma(a, b, c); }
  double operator()(double a, double b, double c) const { return std::fma(a, b, c); }
};
// Of integers, by zero: all bits, as GPUs have it.
struct Div {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(~T{0});
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(T{0} - static_cast<Unsigned<T>>(a));
    }
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
    else return std::min(a, b);
  }
};
struct Max {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
    else return std::max(a, b);
  }
};
struct And {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};
// Shifts beyond the width empty the register, or fill it with its sign.
struct ShiftLeft {
  template <class T>
  T operator()(T a, uint32_t n) const {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << n);
  }
};
struct ShiftRight {
  template <class T>
  T operator()(T a, uint32_t n) const {
    return static_cast<T>(a >> std::min<uint32_t>(n, 8 * sizeof(T) - 1) >> (n >= 8 * sizeof(T) ? 1 : 0));
  }
};
struct Neg {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(0 - static_cast<uint64_t>(a));
    else return -a;
  }
};
struct Abs {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_integral_v<T>) return a < 0 ? Neg()(a) : a;
    else return std::fabs(a);
  }
};
struct Not {
  template <class T>
  T operator()(T a) const {
    return static_cast<T>(~a);
  }
};
struct Popc {
  template <class T>
  uint32_t operator()(T a) const {
    return static_cast<uint32_t>(std::popcount(a));
  }
};
struct Clz {
  template <class T>
  uint32_t operator()(T a) const {
    return static_cast<uint32_t>(std::countl_zero(a));
  }
};
struct Brev {
  template <class T>
  T operator()(T a) const {
    T result = 0;
    for (size_t i = 0; i < 8 * sizeof(T); ++i) result = static_cast<T>(result << 1 | (a >> i & 1));
    return result;
  }
};
struct Same {
  template <class T>
  T operator()(T a) const {
    return a;
  }
};
struct Exp2 {
  float operator()(float a) const { return std::exp2(a); }
};
struct Log2 {
  float operator()(float a) const { return std::log2(a); }
};
struct Sqrt {
  template <class T>
  T operator()(T a) const {
    return std::sqrt(a);
  }
};
struct ReciprocalSqrt {
  float operator()(float a) const { return 1.0f / std::sqrt(a); }
};
struct Reciprocal {
  template <class T>
  T operator()(T a) const {
    return T{1} / a;
  }
};
struct Sin {
  float operator()(float a) const { return std::sin(a); }
};
struct Cos {
  float operator()(float a) const { return std::cos(a); }
};
struct Tanh {
  float operator()(float a) const { return std::tanh(a); }
};
// prmt without modes: bytes of {b, a} by nibbles, whose top bit asks for the sign.
struct Permute {
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t selector) const {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibble = selector >> (4 * i) & 15;
      uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7)) & 0xff);
      if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
      result |= byte << (8 * i);
    }
    return result;
  }
};
template <bool kLeft>
struct FunnelWrap {
  uint32_t operator()(uint32_t low, uint32_t high, uint32_t n) const {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<uint32_t>(kLeft ? both << (n & 31) >> 32 : both >> (n & 31));
  }
};
template <bool kLeft>
struct FunnelClamp {
  uint32_t operator()(uint32_t low, uint32_t high, uint32_t n) const {
    n = std::min(n, 32u);
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
    return static_cast<uint32_t>(kLeft ? both << n >> 32 : both >> n);
  }
};
struct Select {
  template <class T>
  T operator()(T a, T b, bool p) const {
    return p ? a : b;
  }
};

template <class T, class F>
void Set(Decoder& d, int width, size_t sources) {
  d.out.a[0] = d.Place(size_t{0}, width);
  for (size_t i = 1; i <= sources; ++i) d.out.a[i] = d.Place(i, static_cast<int>(sizeof(T)));
}

template <class F>
bool Binary(Decoder& d) {
  return OfType(d.Type(), [&]<class T>(T) {
    if constexpr (std::is_integral_v<T> || !(std::is_same_v<F, And> || std::is_same_v<F, Or> ||
                                             std::is_same_v<F, Xor> || std::is_same_v<F, Rem>)) {
      Set<T, F>(d, sizeof(T), 2);
      d.out.run = Map2<T, F, T>;
    }
  });
}
template <class F>
bool Unary(Decoder& d) {
  return OfType(d.Type(), [&]<class T>(T) {
    Set<T, F>(d, sizeof(T), 1);
    d.out.run = Map1<T, F, T>;
  });
}
template <class F>
bool UnaryBits(Decoder& d, bool counts) {
  return OfType(d.Type(), [&]<class T>(T) {
    if constexpr (std::is_unsigned_v<T>) {
      Set<T, F>(d, counts ? 4 : sizeof(T), 1);
      d.out.run = Map1<decltype(F()(T{})), F, T>;
    }
  });
}
template <class F>
bool UnaryFloat(Decoder& d) {
  d.out.a[0] = d.Place(size_t{0}, 4);
  d.out.a[1] = d.Place(1, 4);
  d.out.run = Map1<float, F, float>;
  return true;
}

// Predicates are masks of lanes.
template <class F>
void Logic2(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t& d = *w.At<uint32_t>(i.a[0]);
  d = (d & ~lanes) | (F()(w.Predicate(i.a[1]), w.Predicate(i.a[2])) & lanes);
}
void LogicNot(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t& d = *w.At<uint32_t>(i.a[0]);
  d = (d & ~lanes) | (~w.Predicate(i.a[1]) & lanes);
}
void LogicMove(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t& d = *w.At<uint32_t>(i.a[0]);
  d = (d & ~lanes) | (w.Predicate(i.a[1]) & lanes);
}

enum Comparison : uint32_t { kEq, kNe, kLt, kLe, kGt, kGe, kEqu, kNeu, kLtu, kLeu, kGtu, kGeu, kNum, kNan };
enum Joined : uint32_t { kAlone, kAnd, kOr, kXor };

template <class T, Comparison kComparison>
bool Compare(T a, T b) {
  constexpr bool kUnordered = kComparison >= kEqu && kComparison <= kGeu;
  if constexpr (std::is_floating_point_v<T>) {
    const bool nan = std::isnan(a) || std::isnan(b);
    if (kComparison == kNum) return !nan;
    if (kComparison == kNan) return nan;
    if (nan) return kUnordered;
  }
  switch (kUnordered ? kComparison - kEqu : kComparison) {
    case kEq: return a == b;
    case kNe: return a != b;
    case kLt: return a < b;
    case kLe: return a <= b;
    case kGt: return a > b;
    default: return a >= b;
  }
}
template <class T, Comparison kComparison>
void SetPredicate(Warp& w, const Instruction& i, uint32_t lanes) {
  const T *a = w.At<T>(i.a[2]), *b = w.At<T>(i.a[3]);
  uint32_t result = 0;
  for (int l = 0; l < kLanes; ++l) result |= static_cast<uint32_t>(Compare<T, kComparison>(a[l], b[l])) << l;
  uint32_t other = ~result;
  if (i.code != kAlone) {
    uint32_t c = w.Predicate(i.a[4]);
    if (i.bytes != 0) c = ~c;
    result = i.code == kAnd ? result & c : i.code == kOr ? result | c : result ^ c;
    other = i.code == kAnd ? other & c : i.code == kOr ? other | c : other ^ c;
  }
  uint32_t& d = *w.At<uint32_t>(i.a[0]);
  uint32_t& e = *w.At<uint32_t>(i.a[1]);
  d = (d & ~lanes) | (result & lanes);
  e = (e & ~lanes) | (other & lanes);
}
template <class T>
Handler Comparer(Comparison comparison) {
  static constexpr Handler kAll[] = {
      SetPredicate<T, kEq>,  SetPredicate<T, kNe>,  SetPredicate<T, kLt>,  SetPredicate<T, kLe>,
      SetPredicate<T, kGt>,  SetPredicate<T, kGe>,  SetPredicate<T, kEqu>, SetPredicate<T, kNeu>,
      SetPredicate<T, kLtu>, SetPredicate<T, kLeu>, SetPredicate<T, kGtu>, SetPredicate<T, kGeu>,
      SetPredicate<T, kNum>, SetPredicate<T, kNan>};
  return kAll[comparison];
}

bool DecodeSetPredicate(Decoder& d) {
  static const std::map<std::string, Comparison> kNames = {
      {"eq", kEq},   {"ne", kNe},   {"lt", kLt},   {"le", kLe},   {"gt", kGt},   {"ge", kGe},   {"lo", kLt},
      {"ls", kLe},   {"hi", kGt},   {"hs", kGe},   {"equ", kEqu}, {"neu", kNeu}, {"ltu", kLtu}, {"leu", kLeu},
      {"gtu", kGtu}, {"geu", kGeu}, {"num", kNum}, {"nan", kNan}};
  const auto comparison = kNames.find(d.parts.at(1));
  if (comparison == kNames.end()) return false;
  std::string first = d.operand(0), second = "sink@0";
  if (const size_t bar = first.find('|'); bar != std::string::npos) {
    second = first.substr(bar + 1);
    first = first.substr(0, bar);
  }
  if (first == "_") first = "sink@0";
  d.out.a[0] = d.Place(first, 0);
  d.out.a[1] = d.Place(second, 0);
  d.out.code = d.Has("and") ? kAnd : d.Has("or") ? kOr : d.Has("xor") ? kXor : kAlone;
  if (d.out.code != kAlone) {
    const bool inverted = d.operand(3)[0] == '!';
    d.out.bytes = inverted ? 1 : 0;
    d.out.a[4] = d.Place(d.operand(3).substr(inverted ? 1 : 0), 0);
  }
  return OfType(d.Type(), [&]<class T>(T) {
    d.out.a[2] = d.Place(1, sizeof(T));
    d.out.a[3] = d.Place(2, sizeof(T));
    d.out.run = Comparer<T>(comparison->second);
  });
}

template <class T>
void SelectOf(Warp& w, const Instruction& i, uint32_t lanes) {
  T* d = w.At<T>(i.a[0]);
  const T *a = w.At<T>(i.a[1]), *b = w.At<T>(i.a[2]);
  const uint32_t p = w.Predicate(i.a[3]);
  ForLanes(lanes, [&](int l) { d[l] = (p >> l & 1) != 0 ? a[l] : b[l]; });
}

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
    if (d.operand(1) == "1" || d.operand(1) == "-1") {
      d.out.a[1] = d.Constant(kAllLanes, 0);
    } else {
      d.out.a[1] = d.Place(1, 0);
    }
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

template <class T>
void BitExtract(Warp& w, const Instruction& i, uint32_t lanes) {
  T* d = w.At<T>(i.a[0]);
  const T* a = w.At<T>(i.a[1]);
  const uint32_t *from = w.At<uint32_t>(i.a[2]), *count = w.At<uint32_t>(i.a[3]);
  constexpr uint32_t kBits = 8 * sizeof(T);
  ForLanes(lanes, [&](int l) {
    const uint32_t at = from[l] & 0xff, n = count[l] & 0xff;
    const uint64_t all = static_cast<Unsigned<T>>(a[l]);
    uint64_t bits = at >= 64 ? 0 : all >> at;
    if (n < kBits) bits &= (uint64_t{1} << n) - 1;
    if (std::is_signed_v<T> && n > 0) {
      const uint32_t top = std::min(at + n - 1, kBits - 1);
      if (n < kBits && (all >> top & 1) != 0) bits |= ~uint64_t{0} << n;
    }
    d[l] = static_cast<T>(bits);
  });
}
template <class T>
void BitInsert(Warp& w, const Instruction& i, uint32_t lanes) {
  T* d = w.At<T>(i.a[0]);
  const T *a = w.At<T>(i.a[1]), *b = w.At<T>(i.a[2]);
  const uint32_t *from = w.At<uint32_t>(i.a[3]), *count = w.At<uint32_t>(i.a[4]);
  ForLanes(lanes, [&](int l) {
    const uint32_t at = from[l] & 0xff, n = count[l] & 0xff;
    uint64_t mask = n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    mask = at >= 64 ? 0 : mask << at;
    const uint64_t shifted = at >= 64 ? 0 : static_cast<uint64_t>(a[l]) << at;
    d[l] = static_cast<T>((static_cast<uint64_t>(b[l]) & ~mask) | (shifted & mask));
  });
}
void Logic3(Warp& w, const Instruction& i, uint32_t lanes) {
  uint32_t* d = w.At<uint32_t>(i.a[0]);
  const uint32_t *a = w.At<uint32_t>(i.a[1]), *b = w.At<uint32_t>(i.a[2]), *c = w.At<uint32_t>(i.a[3]);
  ForLanes(lanes, [&](int l) {
    uint32_t result = 0;
    for (uint32_t k = 0; k < 8; ++k) {
      if ((i.code >> k & 1) == 0) continue;
      result |= ((k & 4) != 0 ? a[l] : ~a[l]) & ((k & 2) != 0 ? b[l] : ~b[l]) & ((k & 1) != 0 ? c[l] : ~c[l]);
    }
    d[l] = result;
  });
}
// The highest bit, or with .shiftamt how far it is from the top; all bits where there is none.
void FindBitShift(Warp& w, const Instruction& i, uint32_t lanes) {
  Map1<uint32_t, decltype([](uint32_t a) { return a == 0 ? ~0u : static_cast<uint32_t>(std::countl_zero(a)); }), uint32_t>(
      w, i, lanes);
}
void FindBit(Warp& w, const Instruction& i, uint32_t lanes) {
  Map1<uint32_t, decltype([](uint32_t a) { return static_cast<uint32_t>(31 - std::countl_zero(a)); }), uint32_t>(w, i, lanes);
}

// {mul, mad} of integers: .lo, .hi, .wide.
bool DecodeProduct(Decoder& d, bool adds) {
  const std::string type = d.Type();
  if (type == "f32" || type == "f64") return !adds && Binary<Mul>(d);
  if (d.Has("wide")) {
    return OfType(type, [&]<class T>(T) {
      if constexpr (std::is_integral_v<T> && (sizeof(T) == 2 || sizeof(T) == 4)) {
        using D = std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                                     std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
        Set<T, Mul>(d, sizeof(D), 2);
        if (adds) d.out.a[3] = d.Place(3, sizeof(D));
        d.out.run = adds ? Map3<D, MadWide<D>, T, D> : Map2<D, MulWide<D>, T>;
      }
    });
  }
  return OfType(type, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      Set<T, Mul>(d, sizeof(T), adds ? 3 : 2);
      const bool high = d.Has("hi");
      if (adds) d.out.run = high ? Map3<T, MadHigh, T> : Map3<T, Mad, T>;
      if (!adds) d.out.run = high ? Map2<T, MulHigh, T> : Map2<T, Mul, T>;
    }
  });
}

template <class F>
bool Bits(Decoder& d) {
  if (d.Type() != "pred") return Binary<F>(d);
  for (size_t i = 0; i < 3; ++i) d.out.a[i] = d.Place(i, 0);
  d.out.run = Logic2<F>;
  return true;
}
template <class F>
bool Shift(Decoder& d) {
  return OfType(d.Type(), [&]<class T>(T) {
    if constexpr (std::is_integral_v<T>) {
      Set<T, F>(d, sizeof(T), 1);
      d.out.a[2] = d.Place(2, 4);
      d.out.run = Map2<T, F, T, uint32_t>;
    }
  });
}

}  // namespace

bool DecodeArithmetic(Decoder& d) {
  const std::string& op = d.op();
  if (op == "add") return !d.Has("cc") && Binary<Add>(d);
  if (op == "sub") return !d.Has("cc") && Binary<Sub>(d);
  if (op == "mul") return DecodeProduct(d, false);
  if (op == "mad") return !d.Has("cc") && DecodeProduct(d, true);
  if (op == "fma") {
    return OfType(d.Type(), [&]<class T>(T) {
      if constexpr (std::is_floating_point_v<T>) {
        Set<T, Fma>(d, sizeof(T), 3);
        d.out.run = Map3<T, Fma, T>;
      }
    });
  }
  if (op == "div") return Binary<Div>(d);
  if (op == "rem") return Binary<Rem>(d);
  if (op == "min") return Binary<Min>(d);
  if (op == "max") return Binary<Max>(d);
  if (op == "and") return Bits<And>(d);
  if (op == "or") return Bits<Or>(d);
  if (op == "xor") return Bits<Xor>(d);
  if (op == "not") {
    if (d.Type() != "pred") return UnaryBits<Not>(d, false);
    d.out.a[0] = d.Place(size_t{0}, 0);
    d.out.a[1] = d.Place(1, 0);
    d.out.run = LogicNot;
    return true;
  }
  if (op == "shl") return Shift<ShiftLeft>(d);
  if (op == "shr") return Shift<ShiftRight>(d);
  if (op == "shf") {
    Set<uint32_t, Add>(d, 4, 3);
    const bool left = d.Has("l"), wraps = d.Has("wrap");
    d.out.run = left ? (wraps ? Map3<uint32_t, FunnelWrap<true>, uint32_t> : Map3<uint32_t, FunnelClamp<true>, uint32_t>)
                     : (wraps ? Map3<uint32_t, FunnelWrap<false>, uint32_t> : Map3<uint32_t, FunnelClamp<false>, uint32_t>);
    return true;
  }
  if (op == "neg") return Unary<Neg>(d);
  if (op == "abs") return Unary<Abs>(d);
  if (op == "popc") return UnaryBits<Popc>(d, true);
  if (op == "clz") return UnaryBits<Clz>(d, true);
  if (op == "brev") return UnaryBits<Brev>(d, false);
  if (op == "bfind" && d.Type() == "u32") {
    Set<uint32_t, Add>(d, 4, 1);
    d.out.run = d.Has("shiftamt") ? FindBitShift : FindBit;
    return true;
  }
  if (op == "setp") return DecodeSetPredicate(d);
  if (op == "selp") {
    const int width = Decoder::Width(d.Type());
    for (size_t i = 0; i < 3; ++i) d.out.a[i] = d.Place(i, width);
    d.out.a[3] = d.Place(3, 0);
    d.out.run = width == 2 ? SelectOf<uint16_t> : width == 4 ? SelectOf<uint32_t> : SelectOf<uint64_t>;
    return true;
  }
  if (op == "cvt") return DecodeConvert(d);
  if (op == "mov") return DecodeMove(d);
  if (op == "prmt" && d.parts.size() == 2) {
    Set<uint32_t, Permute>(d, 4, 3);
    d.out.run = Map3<uint32_t, Permute, uint32_t>;
    return true;
  }
  if (op == "bfe") {
    return OfType(d.Type(), [&]<class T>(T) {
      if constexpr (std::is_integral_v<T> && sizeof(T) >= 4) {
        Set<T, Add>(d, sizeof(T), 1);
        d.out.a[2] = d.Place(2, 4);
        d.out.a[3] = d.Place(3, 4);
        d.out.run = BitExtract<T>;
      }
    });
  }
  if (op == "bfi") {
    return OfType(d.Type(), [&]<class T>(T) {
      if constexpr (std::is_unsigned_v<T> && sizeof(T) >= 4) {
        Set<T, Add>(d, sizeof(T), 2);
        d.out.a[3] = d.Place(3, 4);
        d.out.a[4] = d.Place(4, 4);
        d.out.run = BitInsert<T>;
      }
    });
  }
  if (op == "lop3") {
    Set<uint32_t, Add>(d, 4, 3);
    d.out.code = static_cast<uint32_t>(std::stoul(d.operand(4), nullptr, 0));
    d.out.run = Logic3;
    return true;
  }
  if (op == "ex2") return UnaryFloat<Exp2>(d);
  if (op == "lg2") return UnaryFloat<Log2>(d);
  if (op == "rsqrt") return UnaryFloat<ReciprocalSqrt>(d);
  if (op == "sin") return UnaryFloat<Sin>(d);
  if (op == "cos") return UnaryFloat<Cos>(d);
  if (op == "tanh") return UnaryFloat<Tanh>(d);
  if (op == "sqrt" || op == "rcp") {
    return OfType(d.Type(), [&]<class T>(T) {
      if constexpr (std::is_floating_point_v<T>) {
        Set<T, Sqrt>(d, sizeof(T), 1);
        d.out.run = op == "sqrt" ? Map1<T, Sqrt, T> : Map1<T, Reciprocal, T>;
      }
    });
  }
  return false;
}

}  // namespace eventide::machine
