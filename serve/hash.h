// 64-bit mixing for everything in serving that must be "random" and yet the same on every machine
// and in every run: default random keys of requests, synthetic prompts, shape counting. Not
// cryptographic.
#pragma once

#include <cstdint>
#include <string_view>

namespace eventide {

// A bijection of 64-bit integers that spreads every input bit over the output (two rounds of
// xor-shift and multiplication by odd constants).
inline constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Order matters: CombineHash(a, b) != CombineHash(b, a).
inline constexpr uint64_t CombineHash(uint64_t seed, uint64_t value) {
  return Mix64(seed ^ Mix64(value));
}

inline constexpr uint64_t HashBytes(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325ull;  // FNV-1a, then mixed: FNV alone leaves the high bits poor
  for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return Mix64(hash);
}

}  // namespace eventide
