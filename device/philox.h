// Random numbers that are a pure function of (key, counter): Philox4x32-10 (Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC'11), and normals made from them with the same
// bits on every target: integer arithmetic, int-to-float conversion, products and explicit Fma
// only, and no sum of a product that a compiler could fuse.
#pragma once

#include "device/base.h"

namespace eventide {

struct PhiloxBlock {
  u32 lane[4];
};

EVT_FN PhiloxBlock Philox4x32(u64 key, u64 counter_low, u64 counter_high = 0) {
  u32 k0 = u32(key), k1 = u32(key >> 32);
  u32 c0 = u32(counter_low), c1 = u32(counter_low >> 32);
  u32 c2 = u32(counter_high), c3 = u32(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 a = u64(c0) * 0xd2511f53u;
    const u64 b = u64(c2) * 0xcd9e8d57u;
    c0 = u32(b >> 32) ^ c1 ^ k0;
    c1 = u32(b);
    c2 = u32(a >> 32) ^ c3 ^ k1;
    c3 = u32(a);
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return PhiloxBlock{{c0, c1, c2, c3}};
}

// The standard normal at the probability (bits' low 31 + 0.5) / 2^32, mirrored if the top bit is set.
// Within 1.3e-4 of it, relatively (5e-4 for the one rarest magnitude, 6.335): storage in bfloat16
// rounds thirty times more coarsely. Polynomials: least squares at Chebyshev nodes, weighted for
// relative error.
EVT_FN float NormalFromBits(u32 bits) {
  // p in (0, 0.5]: exact up to one rounding; both branches are smooth functions of it.
  const float p = Fma(float(i32(bits & 0x7fffffffu)), 0x1p-32f, 0x1p-33f);

  // Middle, p > 1/16: odd in q = 1/2 - p.
  const float q = 0.5f - p;
  const float s = q * q;
  float middle = 100298.453f;
  middle = Fma(middle, s, -50111.582f);
  middle = Fma(middle, s, 10739.3115f);
  middle = Fma(middle, s, -1067.12878f);
  middle = Fma(middle, s, 76.0967407f);
  middle = Fma(middle, s, 4.21542597f);
  middle = Fma(middle, s, 2.63985991f);
  middle = Fma(middle, s, 2.50660515f);
  middle = middle * q;

  // Tail: a polynomial in u = (-log2(p) - 18) / 14, which lies in [-1, 1.01].
  const u32 float_bits = __builtin_bit_cast(u32, p);
  const float m = __builtin_bit_cast(float, (float_bits & 0x7fffffu) | 0x3f800000u) - 1.0f;
  float log = -0.0345952101f;
  log = Fma(log, m, 0.146433622f);
  log = Fma(log, m, -0.303389668f);
  log = Fma(log, m, 0.469301701f);
  log = Fma(log, m, -0.720442355f);
  log = Fma(log, m, 1.44268322f);
  log = Fma(log, m, float(i32(float_bits >> 23) - 127));
  const float u = Fma(log, -1.0f / 14.0f, -18.0f / 14.0f);
  float tail = -0.0816183835f;
  tail = Fma(tail, u, 0.0781967118f);
  tail = Fma(tail, u, 0.0646448657f);
  tail = Fma(tail, u, -0.00385749689f);
  tail = Fma(tail, u, -0.143150881f);
  tail = Fma(tail, u, 0.201826632f);
  tail = Fma(tail, u, -0.432771325f);
  tail = Fma(tail, u, 2.07172489f);
  tail = Fma(tail, u, 4.47509527f);

  const float magnitude = p > 0.0625f ? middle : tail;
  return __builtin_bit_cast(float, __builtin_bit_cast(u32, magnitude) ^ (bits & 0x80000000u));
}

// A weight drawn at random (models/random_weights.h), before it is rounded to what a checkpoint stores;
// norms' weights lie around 1.
EVT_FN float DrawWeight(u32 bits, bool norm) {
  return Fma(norm ? 0.1f : 0.02f, NormalFromBits(bits), norm ? 1.0f : 0.0f);
}

}  // namespace eventide
