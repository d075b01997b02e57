// Bits of tensor cores: every form of matrix instruction, in every width, sums a chain of steps of 16 to
// the same bits, and the linear op, whichever forms it uses, has those of the tree made of such chains.
#include <bit>
#include <iostream>

#include "tests/ops/linear_tree.h"
#include "tests/support/gpu.h"
#include "tests/support/mma_probe.h"

namespace eventide {
namespace {

std::unique_ptr<MmaProbe> Probe() {
  if (!HaveGpu()) return nullptr;
  auto probe = MmaProbe::Open();
  INFO(probe.status());
  REQUIRE(probe.ok());
  return *std::move(probe);
}

// What rounding and the alignment of addends might treat differently.
enum Kind { kNormal, kWild, kCancelling, kTiny, kKinds };

enum Side { kA, kB };

template <class T>
std::vector<T> Operand(Kind kind, Side side, int rows, int k, uint64_t seed) {
  RandomValues random(seed);
  std::vector<T> values(static_cast<size_t>(rows) * k);
  const int range = std::is_same_v<T, BF16> ? 20 : 6;
  for (size_t i = 0; i < values.size(); ++i) {
    double v = random.Normal();
    if (kind == kWild) v = std::ldexp(v, random.Between(-range, range));
    // Neighbours along k whose products all but cancel.
    if (kind == kCancelling && i % 2 == 1)
      v = ToFloat(values[i - 1]) * (side == kA ? -1 - 0.01 * random.Below(2) : 1);
    // bf16's products are below what float holds normally; f16's own values are subnormal.
    if (kind == kTiny) v = std::ldexp(v, std::is_same_v<T, BF16> ? -70 : -18);
    values[i] = Storage<T>::From(static_cast<float>(v));
  }
  return values;
}

std::vector<float> Transposed(const std::vector<float>& m, size_t rows) {
  const size_t columns = m.size() / rows;
  std::vector<float> t(m.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < columns; ++c) t[c * rows + r] = m[r * columns + c];
  }
  return t;
}

// Outputs of the first `columns` of `wide` columns that differ in any bit.
int64_t Differences(const std::vector<float>& narrow, size_t columns, const std::vector<float>& wide,
                    size_t wide_columns) {
  int64_t count = 0;
  for (size_t i = 0; i < narrow.size(); ++i) {
    count += std::bit_cast<u32>(narrow[i]) !=
             std::bit_cast<u32>(wide[i / columns * wide_columns + i % columns]);
  }
  return count;
}

// Neither zero nor garbage: against float64. Of each of 17 addends a step may lose 2^-24 of the largest,
// which is at most the sum of all sizes.
template <class T>
double WorstOf(const std::vector<float>& got, const std::vector<T>& a, const std::vector<T>& b, int k) {
  const size_t columns = b.size() / static_cast<size_t>(k);
  WorstError worst;
  for (size_t i = 0; i < got.size(); ++i) {
    double sum = 0, size = 0;
    for (int j = 0; j < k; ++j) {
      const double product = double{ToFloat(a[i / columns * static_cast<size_t>(k) + j])} *
                             ToFloat(b[i % columns * static_cast<size_t>(k) + j]);
      sum += product;
      size += std::abs(product);
    }
    worst.Add(got[i], sum, size * (k / 16) * 17 * 0x1p-23 + 1e-38);
  }
  return worst.ratio;
}

template <class T>
void CheckForms(MmaProbe& probe, Kind kind, int k, int64_t* forms, int64_t* outputs) {
  constexpr int kRows = 64, kColumns = 256;
  const std::vector<T> a = Operand<T>(kind, kA, kRows, k, 1 + kind),
                       b = Operand<T>(kind, kB, kColumns, k, 77 + k);
  const auto reference = probe.Mma(a, b, k, 0, k / 16);
  INFO(reference.status());
  REQUIRE(reference.ok());
  CAPTURE(MmaTypeName<T>(), kind, k);
  CHECK(WorstOf(*reference, a, b, k) <= 1);
  const auto exchanged = probe.Mma(b, a, k, 0, k / 16);
  REQUIRE(exchanged.ok());
  CHECK(Differences(Transposed(*exchanged, kColumns), kColumns, *reference, kColumns) == 0);
  *forms += 2;
  *outputs += 2 * kRows * kColumns;
  if (!probe.has_wgmma()) return;
  for (int n = 8; n <= kColumns; n += 8) {
    const std::vector<T> some(b.begin(), b.begin() + int64_t{n} * k);
    const auto wide = probe.Wgmma(a, some, k, 0, k / 16);
    INFO("wgmma m64n" << n << "k16: " << wide.status());
    REQUIRE(wide.ok());
    CHECK(Differences(*wide, n, *reference, kColumns) == 0);
    ++*forms;
    *outputs += kRows * n;
  }
}

TEST_CASE("mma.sync, its operands exchanged, and wgmma of every width sum to the same bits") {
  const auto probe = Probe();
  if (probe == nullptr) return;
  int64_t forms = 0, outputs = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    for (const int k : {16, 592, 4096}) {
      CheckForms<BF16>(*probe, static_cast<Kind>(kind), k, &forms, &outputs);
      CheckForms<F16>(*probe, static_cast<Kind>(kind), k, &forms, &outputs);
    }
  }
  std::cout << "tensor-core bits on " << probe->gpu() << ": " << forms << " forms and inputs, "
            << outputs << " sums" << (probe->has_wgmma() ? "" : "; no wgmma here") << "\n";
}

TEST_CASE("one more step or another order of steps has other bits, so that equal ones mean something") {
  const auto probe = Probe();
  if (probe == nullptr) return;
  const int k = 512;
  const std::vector<BF16> a = Operand<BF16>(kNormal, kA, 64, k, 5),
                          b = Operand<BF16>(kNormal, kB, 64, k, 6);
  const auto whole = probe->Mma(a, b, k, 0, 32), shorter = probe->Mma(a, b, k, 0, 31);
  const auto left = probe->Mma(a, b, k, 0, 16), right = probe->Mma(a, b, k, 256, 16);
  for (const auto* result : {&whole, &shorter, &left, &right}) REQUIRE(result->ok());
  std::vector<float> halves(*left);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] += (*right)[i];
  CHECK(Differences(*shorter, 64, *whole, 64) > 4000);
  CHECK(Differences(halves, 64, *whole, 64) > 500);
}

template <class T>
int64_t OpDifferences(MmaProbe& probe, const LinearShape& shape, int workers) {
  const LinearData<T> data(shape);
  const auto chain = [&](const std::vector<T>& a, const std::vector<T>& b, int k, int first, int steps) {
    auto sums = probe.Mma(a, b, k, first, steps);
    INFO(sums.status());
    REQUIRE(sums.ok());
    return *std::move(sums);
  };
  return TreeDifferences(OpBackend{"cuda", kCudaBackend, workers, "static"}, data, chain);
}

TEST_CASE("linears on a GPU have the bits of the reference tree for every width") {
  const auto probe = Probe();
  if (probe == nullptr) return;
  int cases = 0;
  for (const int tokens : {1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 33, 40, 48, 63, 64, 65, 96}) {
    CAPTURE(tokens);
    CHECK(OpDifferences<BF16>(*probe, {tokens, 33, 172}, 0) == 0);
    CHECK(OpDifferences<BF16>(*probe, {tokens, 96, 2048}, 3) == 0);
    CHECK(OpDifferences<F16>(*probe, {tokens, 64, 400}, 0) == 0);
    // Several tiles of a task, two of which may share a pass; K that leaves part of a page of each height and kind.
    CHECK(OpDifferences<BF16>(*probe, {.tokens = tokens, .rows = 160, .k = 896, .tile_rows = 32, .tiles = 3}, 0) == 0);
    CHECK(OpDifferences<BF16>(*probe, {.tokens = tokens, .rows = 112, .k = 1664, .tile_rows = 16, .tiles = 2}, 2) == 0);
    CHECK(OpDifferences<F16>(*probe, {.tokens = tokens, .rows = 250, .k = 1664, .tile_rows = 32, .tiles = 4}, 0) == 0);
    cases += 6;
  }
  // Passes of up to four tiles, the last of fewer; a segment's steps more, fewer and as many as a page has.
  for (const int tokens : {17, 32, 33, 50, 64, 65, 100, 129, 200, 256, 300}) {
    CAPTURE(tokens);
    for (const int tiles : {2, 3, 7}) {
      CHECK(OpDifferences<BF16>(*probe, {.tokens = tokens, .rows = 60 + 32 * tiles, .k = 2000, .tiles = tiles}, 0) == 0);
    }
    CHECK(OpDifferences<BF16>(*probe, {.tokens = tokens, .rows = 500, .k = 1024, .tiles = 1, .team = 4}, 5) == 0);
    CHECK(OpDifferences<F16>(*probe, {.tokens = tokens, .rows = 760, .k = 896, .tiles = 3, .team = 4}, 0) == 0);
    CHECK(OpDifferences<BF16>(*probe, {.tokens = tokens, .rows = 128, .k = 640, .tile_rows = 16, .team = 4}, 0) == 0);
    cases += 6;
  }
  std::cout << "linears with the bits of the tree: " << cases << " shapes\n";
}

}  // namespace
}  // namespace eventide
