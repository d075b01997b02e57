// What instructions compute of one lane's values.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace eventide::machine {

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

}  // namespace eventide::machine
