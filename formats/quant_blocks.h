// One block of each GGUF format as floats. Layouts as in ggml: halves are little-endian float16,
// nibbles hold the first half of a block low and the second half high.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace eventide {

inline float LoadHalf(const unsigned char* bytes) {
  return F16ToF32(uint16_t(bytes[0] | bytes[1] << 8));
}

// 32 elements: scale d, 16 bytes of nibbles; d * (nibble - 8).
inline void DequantizeQ4_0(const unsigned char* block, float* out) {
  const float d = LoadHalf(block);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * float((block[2 + i] & 15) - 8);
    out[i + 16] = d * float((block[2 + i] >> 4) - 8);
  }
}

// 32 elements: scale d, minimum m, nibbles; d * nibble + m.
inline void DequantizeQ4_1(const unsigned char* block, float* out) {
  const float d = LoadHalf(block), m = LoadHalf(block + 2);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * float(block[4 + i] & 15) + m;
    out[i + 16] = d * float(block[4 + i] >> 4) + m;
  }
}

// The fifth bits of 32 elements: bit i of four little-endian bytes, worth 16.
inline int FifthBit(const unsigned char* high, int i) {
  return (high[i / 8] >> (i % 8) & 1) << 4;
}

// 32 elements: scale, four bytes of fifth bits, nibbles; d * (q - 16).
inline void DequantizeQ5_0(const unsigned char* block, float* out) {
  const float d = LoadHalf(block);
  const unsigned char* low = block + 6;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * float(((low[i] & 15) | FifthBit(block + 2, i)) - 16);
    out[i + 16] = d * float(((low[i] >> 4) | FifthBit(block + 2, i + 16)) - 16);
  }
}

// 32 elements: scale, minimum, four bytes of fifth bits, nibbles; d * q + m.
inline void DequantizeQ5_1(const unsigned char* block, float* out) {
  const float d = LoadHalf(block), m = LoadHalf(block + 2);
  const unsigned char* low = block + 8;
  for (int i = 0; i < 16; ++i) {
    out[i] = d * float((low[i] & 15) | FifthBit(block + 4, i)) + m;
    out[i + 16] = d * float((low[i] >> 4) | FifthBit(block + 4, i + 16)) + m;
  }
}

// 32 elements: scale, 32 signed bytes.
inline void DequantizeQ8_0(const unsigned char* block, float* out) {
  const float d = LoadHalf(block);
  for (int i = 0; i < 32; ++i) out[i] = d * float(int8_t(block[2 + i]));
}

// Scale and minimum (6 bits each) of the eight sub-blocks of a K block, packed in 12 bytes: the
// first four are in the low six bits of bytes 0..3 and 4..7; the others have four bits in
// bytes 8..11 and their top two above those of the first four.
inline void UnpackScales(const unsigned char* packed, int sub, int* scale, int* minimum) {
  if (sub < 4) {
    *scale = packed[sub] & 63;
    *minimum = packed[sub + 4] & 63;
  } else {
    *scale = (packed[sub + 4] & 15) | (packed[sub - 4] >> 6 << 4);
    *minimum = (packed[sub + 4] >> 4) | (packed[sub] >> 6 << 4);
  }
}

// 256 elements in eight sub-blocks of 32: d, dmin, packed scales, nibbles (two sub-blocks share 32
// bytes); (d * scale) * q - dmin * minimum.
inline void DequantizeQ4_K(const unsigned char* block, float* out) {
  const float d = LoadHalf(block), dmin = LoadHalf(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    int scale, minimum;
    UnpackScales(block + 4, sub, &scale, &minimum);
    const float step = d * float(scale), base = dmin * float(minimum);
    const unsigned char* low = block + 16 + sub / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      out[sub * 32 + i] = step * float(low[i] >> (sub % 2 * 4) & 15) - base;
    }
  }
}

// As Q4_K with 32 bytes of fifth bits before the nibbles: bit `sub` of byte i.
inline void DequantizeQ5_K(const unsigned char* block, float* out) {
  const float d = LoadHalf(block), dmin = LoadHalf(block + 2);
  for (int sub = 0; sub < 8; ++sub) {
    int scale, minimum;
    UnpackScales(block + 4, sub, &scale, &minimum);
    const float step = d * float(scale), base = dmin * float(minimum);
    const unsigned char* high = block + 16;
    const unsigned char* low = block + 48 + sub / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = (low[i] >> (sub % 2 * 4) & 15) | (high[i] >> sub & 1) << 4;
      out[sub * 32 + i] = step * float(q) - base;
    }
  }
}

// 256 elements in two halves of 128: 64 bytes of nibbles and 32 bytes of two-bit tops a half, 16
// signed scales (one per 16 elements), d; (d * scale) * (q - 32).
inline void DequantizeQ6_K(const unsigned char* block, float* out) {
  const float d = LoadHalf(block + 208);
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128, quarter = e % 128 / 32, i = e % 32;
    const unsigned char* low = block + half * 64 + quarter % 2 * 32;
    const unsigned char* high = block + 128 + half * 32;
    const int q = (low[i] >> (quarter / 2 * 4) & 15) | (high[i] >> (quarter * 2) & 3) << 4;
    const float step = d * float(int8_t(block[192 + e / 16]));
    out[e] = step * float(q - 32);
  }
}

}  // namespace eventide
