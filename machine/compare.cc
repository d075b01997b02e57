// Comparisons and what selects by them.
#include <cmath>
#include <map>

#include "machine/maps.h"

namespace eventide::machine {
namespace {

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
  SetLanes(*w.At<uint32_t>(i.a[0]), lanes, result);
  SetLanes(*w.At<uint32_t>(i.a[1]), lanes, other);
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
  const auto [first, second] = d.Pair(0);
  d.out.a[0] = d.Sink(first, 0);
  d.out.a[1] = d.Sink(second, 0);
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

}  // namespace

bool DecodeCompare(Decoder& d) {
  if (d.op() == "setp") return DecodeSetPredicate(d);
  if (d.op() != "selp") return false;
  const int width = Decoder::Width(d.Type());
  for (size_t i = 0; i < 3; ++i) d.out.a[i] = d.Place(i, width);
  d.out.a[3] = d.Place(3, 0);
  d.out.run = width == 2 ? SelectOf<uint16_t> : width == 4 ? SelectOf<uint32_t> : SelectOf<uint64_t>;
  return true;
}

}  // namespace eventide::machine
