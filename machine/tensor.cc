// Tensor cores: fragments and products of 16 x 8 x 16 blocks. Sums are of float64 in the order of k, rounded to float
// once a step: as exact as any tensor core, and the same bits whatever the form. A GPU's own bits are another tree.
#include <array>

#include "device/dtype.h"
#include "machine/decode.h"

namespace eventide::machine {
namespace {

using Rows = std::array<std::array<float, 16>, 16>;  // [row][k]
using Columns = std::array<std::array<double, 8>, 16>;  // [k][column]

template <class T>
float Half(uint32_t pair, int which) {
  T value;
  const uint16_t bits = static_cast<uint16_t>(which == 0 ? pair : pair >> 16);
  std::memcpy(&value, &bits, 2);
  return ToFloat(value);
}

template <class T>
Rows LoadRows(const Warp& w, const uint32_t* places) {
  Rows rows;
  for (int l = 0; l < kLanes; ++l) {
    for (int r = 0; r < 4; ++r) {
      const uint32_t pair = w.At<uint32_t>(places[r])[l];
      for (int h = 0; h < 2; ++h)
        rows[static_cast<size_t>(l / 4 + r % 2 * 8)][static_cast<size_t>(l % 4 * 2 + r / 2 * 8 + h)] = Half<T>(pair, h);
    }
  }
  return rows;
}

// d = a * b + c, or a * b. places: of d's four registers, then c's.
void Multiply(Warp& w, const Rows& a, const Columns& b, const uint32_t* d, const uint32_t* c, bool adds) {
  float* sums[4] = {w.At<float>(d[0]), w.At<float>(d[1]), w.At<float>(d[2]), w.At<float>(d[3])};
  const float* old[4] = {w.At<float>(c[0]), w.At<float>(c[1]), w.At<float>(c[2]), w.At<float>(c[3])};
  for (size_t row = 0; row < 16; ++row) {
    double sum[8];
    for (size_t n = 0; n < 8; ++n) sum[n] = adds ? old[row / 8 * 2 + n % 2][row % 8 * 4 + n / 2] : 0.0;
    for (size_t k = 0; k < 16; ++k) {
      for (size_t n = 0; n < 8; ++n) sum[n] += static_cast<double>(a[row][k]) * b[k][n];
    }
    for (size_t n = 0; n < 8; ++n) sums[row / 8 * 2 + n % 2][row % 8 * 4 + n / 2] = static_cast<float>(sum[n]);
  }
}

// many: d0-3, a0-3, b0-1, c0-3.
template <class T>
void Mma(Warp& w, const Instruction& i, uint32_t) {
  const Rows a = LoadRows<T>(w, i.many.data() + 4);
  Columns b;
  for (int l = 0; l < kLanes; ++l) {
    for (int r = 0; r < 2; ++r) {
      const uint32_t pair = w.At<uint32_t>(i.many[static_cast<size_t>(8 + r)])[l];
      for (int h = 0; h < 2; ++h) b[static_cast<size_t>(l % 4 * 2 + r * 8 + h)][static_cast<size_t>(l / 4)] = Half<T>(pair, h);
    }
  }
  Multiply(w, a, b, i.many.data(), i.many.data() + 10, true);
}

// wgmma with rows in registers: of the warpgroup's 64 rows each warp has 16. many: the sums, then a0-3; a[0]: the matrix
// of columns, a[1]: whether it adds; bytes: columns.
template <class T>
void Wgmma(Warp& w, const Instruction& i, uint32_t) {
  const uint64_t matrix = w.At<uint64_t>(i.a[0])[0];
  for (int l = 1; l < kLanes; ++l) {
    if (w.At<uint64_t>(i.a[0])[l] != matrix) Fail(w, i, "lanes with different matrices");
  }
  const uint32_t from = static_cast<uint32_t>(matrix & 0x3fff) << 4, k_stride = static_cast<uint32_t>(matrix >> 16 & 0x3fff) << 4,
                 row_stride = static_cast<uint32_t>(matrix >> 32 & 0x3fff) << 4;
  if (matrix >> 62 != 0) Fail(w, i, "swizzled matrices");
  const bool adds = (w.Predicate(i.a[1]) & 1) != 0;
  const Rows a = LoadRows<T>(w, i.many.data() + i.bytes / 2);
  Warp::Product product;
  for (uint32_t group = 0; group < i.bytes / 8; ++group) {
    Columns b;
    for (uint32_t half = 0; half < 2; ++half) {
      const uint32_t at = from + half * k_stride + group * row_stride;
      const uint8_t* core = SharedAt(w, at, 128, Access::kRead, i);
      product.reads.emplace_back(at, 128);
      for (size_t n = 0; n < 8; ++n) {
        for (size_t k = 0; k < 8; ++k) {
          T value;
          std::memcpy(&value, core + n * 16 + k * 2, 2);
          b[half * 8 + k][n] = static_cast<double>(ToFloat(value));
        }
      }
    }
    Multiply(w, a, b, i.many.data() + group * 4, i.many.data() + group * 4, adds);
  }
  product.group = w.groups;
  for (const auto& [at, bytes] : product.reads) {
    for (uint32_t k = 0; k < bytes; ++k) product.sum = product.sum * 31 + w.block->shared[at + k];
  }
  w.products.push_back(std::move(product));
}
void WgmmaCommit(Warp& w, const Instruction&, uint32_t) { ++w.groups; }
// What a product reads must still be there when it is through; the clock says whether it could have been overwritten.
void WgmmaWait(Warp& w, const Instruction& i, uint32_t) {
  std::vector<Warp::Product> left;
  for (Warp::Product& product : w.products) {
    if (product.group >= w.groups - static_cast<int>(i.code)) {
      left.push_back(std::move(product));
      continue;
    }
    uint64_t sum = 0;
    for (const auto& [at, bytes] : product.reads) {
      SharedAt(w, at, bytes, Access::kRead, i);
      for (uint32_t k = 0; k < bytes; ++k) sum = sum * 31 + w.block->shared[at + k];
    }
    if (sum != product.sum) Fail(w, i, "columns changed while wgmma read them");
  }
  w.products = std::move(left);
}
void Nothing(Warp&, const Instruction&, uint32_t) {}

// bytes: matrices; code: transposed. many: their registers; a[0]: addresses.
void LoadMatrix(Warp& w, const Instruction& i, uint32_t) {
  uint32_t addresses[kLanes];  // a result's register may be theirs
  std::memcpy(addresses, w.At<uint32_t>(i.a[0]), sizeof(addresses));
  for (uint32_t m = 0; m < i.bytes; ++m) {
    uint16_t matrix[8][8];
    for (uint32_t row = 0; row < 8; ++row) {
      const uint32_t at = addresses[m * 8 + row] + static_cast<uint32_t>(i.offset);
      if (at % 16 != 0) Fail(w, i, "a row that is not aligned to 16 bytes");
      std::memcpy(matrix[row], SharedAt(w, at, 16, Access::kRead, i), 16);
    }
    uint32_t* d = w.At<uint32_t>(i.many[m]);
    for (int l = 0; l < kLanes; ++l) {
      const int g = l / 4, t = l % 4 * 2;
      const uint16_t low = i.code != 0 ? matrix[t][g] : matrix[g][t], high = i.code != 0 ? matrix[t + 1][g] : matrix[g][t + 1];
      d[l] = static_cast<uint32_t>(high) << 16 | low;
    }
  }
}
void MoveMatrix(Warp& w, const Instruction& i, uint32_t) {
  const uint32_t* a = w.At<uint32_t>(i.a[1]);
  uint16_t matrix[8][8];
  for (int l = 0; l < kLanes; ++l) {
    matrix[l / 4][l % 4 * 2] = static_cast<uint16_t>(a[l]);
    matrix[l / 4][l % 4 * 2 + 1] = static_cast<uint16_t>(a[l] >> 16);
  }
  uint32_t* d = w.At<uint32_t>(i.a[0]);
  for (int l = 0; l < kLanes; ++l)
    d[l] = static_cast<uint32_t>(matrix[l % 4 * 2 + 1][l / 4]) << 16 | matrix[l % 4 * 2][l / 4];
}

}  // namespace

bool DecodeTensor(Decoder& d) {
  const std::string& op = d.op();
  const auto all = [&] { d.out.flow = Flow::kGathers, d.out.members = static_cast<int>(d.Constant(kAllLanes, 4)); };
  const auto add = [&](size_t operand) {
    for (const std::string& name : d.Vector(operand)) d.out.many.push_back(d.Place(name, 4));
  };
  if (op == "mma" && d.Has("m16n8k16") && (d.Has("bf16") || d.Has("f16"))) {
    all();
    for (size_t i = 0; i < 4; ++i) add(i);
    d.out.run = d.Has("bf16") ? Mma<BF16> : Mma<F16>;
    return d.out.many.size() == 14;
  }
  if (op == "ldmatrix") {
    all();
    add(0);
    d.out.bytes = static_cast<uint32_t>(d.out.many.size());
    d.out.a[0] = d.Address(d.operand(1), 4);
    d.out.code = d.Has("trans") ? 1 : 0;
    d.out.run = LoadMatrix;
    return true;
  }
  if (op == "movmatrix") {
    all();
    d.out.a[0] = d.Place(size_t{0}, 4);
    d.out.a[1] = d.Place(1, 4);
    d.out.run = MoveMatrix;
    return true;
  }
  if (op != "wgmma") return false;
  all();
  if (d.Has("fence")) {
    d.out.run = Nothing;
  } else if (d.Has("commit_group")) {
    d.out.run = WgmmaCommit;
  } else if (d.Has("wait_group")) {
    d.out.code = static_cast<uint32_t>(std::stoul(d.operand(0)));
    d.out.run = WgmmaWait;
  } else {
    // d, a, matrix, adds, 1, 1, 0
    add(0);
    d.out.bytes = static_cast<uint32_t>(d.out.many.size() * 2);
    add(1);
    d.out.a[0] = d.Place(2, 8);
    d.out.a[1] = d.Place(3, 0);
    d.out.run = d.Has("bf16") ? Wgmma<BF16> : Wgmma<F16>;
    return d.out.many.size() == d.out.bytes / 2 + 4 && d.operand(4) == "1" && d.operand(5) == "1" && d.operand(6) == "0";
  }
  return true;
}

}  // namespace eventide::machine
