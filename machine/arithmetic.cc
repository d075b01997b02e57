// Sums, products, bits and functions of registers.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "machine/functions.h"
#include "machine/maps.h"

namespace eventide::machine {
namespace {

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
  SetLanes(*w.At<uint32_t>(i.a[0]), lanes, F()(w.Predicate(i.a[1]), w.Predicate(i.a[2])));
}
void LogicNot(Warp& w, const Instruction& i, uint32_t lanes) {
  SetLanes(*w.At<uint32_t>(i.a[0]), lanes, ~w.Predicate(i.a[1]));
}
template <class T>
void BitExtract(Warp& w, const Instruction& i, uint32_t lanes) {
  T* d = w.At<T>(i.a[0]);
  const T* a = w.At<T>(i.a[1]);
  const uint32_t *from = w.At<uint32_t>(i.a[2]), *count = w.At<uint32_t>(i.a[3]);
  constexpr uint32_t kBits = 8 * sizeof(T);
  ForLanes(lanes, [&](int l) {
    const uint32_t at = from[l] & 0xff, n = count[l] & 0xff;
    // Bits above the register are its sign, or zeros.
    const int64_t all = static_cast<int64_t>(a[l]);
    uint64_t bits = static_cast<uint64_t>(std::is_signed_v<T> ? all >> std::min(at, 63u) : 0);
    if (!std::is_signed_v<T>) bits = at >= kBits ? 0 : static_cast<uint64_t>(static_cast<Unsigned<T>>(a[l])) >> at;
    if (n < 64) {
      const bool sign = std::is_signed_v<T> && n > 0 && (bits >> (n - 1) & 1) != 0;
      bits &= (uint64_t{1} << n) - 1;
      if (sign) bits |= ~uint64_t{0} << n;
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
  // What is not done here is refused, not left out.
  for (const char* part : {"rz", "rm", "rp", "sat", "NaN", "xorsign", "cc"}) {
    if (d.Has(part)) return false;
  }
  if (op == "add") return Binary<Add>(d);
  if (op == "sub") return Binary<Sub>(d);
  if (op == "mul") return DecodeProduct(d, false);
  if (op == "mad") return DecodeProduct(d, true);
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
