#include "models/random_weights.h"

#include <bit>
#include <cmath>
#include <thread>
#include <vector>

#include "device/philox.h"
#include "tests/support/test.h"

using namespace eventide;

TEST_CASE("Philox gives the published known answers") {
  auto lanes = [](const PhiloxBlock& b) { return std::vector<u32>(b.lane, b.lane + 4); };
  CHECK(lanes(Philox4x32(0, 0)) ==
        std::vector<u32>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(lanes(Philox4x32(~0ull, ~0ull, ~0ull)) ==
        std::vector<u32>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(lanes(Philox4x32(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull)) ==
        std::vector<u32>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("The normal of 32 bits inverts the normal distribution") {
  for (u32 step = 0; step < 4096; ++step) {
    const u32 bits = step * 524287u & 0x7fffffffu;
    const double z = NormalFromBits(bits);
    const double p = (double(bits) + 0.5) / 4294967296.0;
    REQUIRE(z >= 0);
    // P(Z > z) should be p; an error dz in z changes it by density(z) * dz.
    const double density = std::exp(-z * z / 2) / std::sqrt(2 * M_PI);
    CHECK(std::abs(std::erfc(z / std::sqrt(2.0)) / 2 - p) <=
          density * ((bits == 0 ? 5e-4 : 1.5e-4) * z + 1e-6));
    CHECK(NormalFromBits(bits | 0x80000000u) == -float(z));
  }
}

TEST_CASE("Random weights have the mean, deviation and kurtosis of the normal they claim") {
  const auto source = OpenRandomWeights("llama-3.2-1b@7");
  REQUIRE(source.ok());
  const size_t count = 1 << 20;
  std::vector<float> values(count);
  REQUIRE((*source)->Read("lm_head.weight", 0, 1, DType::kF32, values.data()).code() ==
          absl::StatusCode::kNotFound);
  REQUIRE((*source)
              ->Read("model.layers.3.mlp.up_proj.weight", 12345, count, DType::kF32, values.data())
              .ok());
  double sum = 0, square = 0, fourth = 0;
  for (float x : values) {
    const double z = x / 0.02;
    sum += z;
    square += z * z;
    fourth += z * z * z * z;
  }
  // Five standard errors of each estimate: 1, sqrt(2), sqrt(96) over sqrt(count).
  const double unit = 5 / std::sqrt(double(count));
  CHECK(std::abs(sum / count) < unit);
  CHECK(std::abs(square / count - 1) < unit * std::sqrt(2.0));
  CHECK(std::abs(fourth / count - 3) < unit * std::sqrt(96.0));
  std::vector<float> norm(2048);
  REQUIRE((*source)->Read("model.norm.weight", 0, 2048, DType::kF32, norm.data()).ok());
  double mean = 0;
  for (float x : norm) mean += x / 2048;
  CHECK(std::abs(mean - 1) < 5 * 0.1 / std::sqrt(2048.0));
}

TEST_CASE("An element depends on name, seed and index alone, however it is read") {
  const auto source = OpenRandomWeights("test-llama@3");
  REQUIRE(source.ok());
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  const int64_t count = 64 * 192;
  std::vector<float> whole(count);
  REQUIRE((*source)->Read(name, 0, count, DType::kF32, whole.data()).ok());
  for (int64_t first : {0, 1, 2, 3, 5, 255, 256, 257, 1021}) {
    std::vector<uint16_t> part(515);
    REQUIRE((*source)->Read(name, first, 515, DType::kBF16, part.data()).ok());
    for (int64_t i = 0; i < 515; ++i) CHECK(BF16ToF32(part[i]) == whole[first + i]);
  }
  const u64 key = RandomTensorKey(name, 3);
  for (int64_t i : {0, 1, 2, 3, 4, 777, 12287}) {
    const float normal = NormalFromBits(Philox4x32(key, u64(i) / 4).lane[i % 4]);
    CHECK(whole[i] == BF16ToF32(F32ToBF16(0.02f * normal)));
  }
  std::vector<float> other(4), seeded(4);
  REQUIRE((*source)->Read("lm_head.weight", 0, 4, DType::kF32, other.data()).ok());
  REQUIRE((*OpenRandomWeights("test-llama@4"))->Read(name, 0, 4, DType::kF32, seeded.data()).ok());
  CHECK(!std::equal(other.begin(), other.end(), whole.begin()));
  CHECK(!std::equal(seeded.begin(), seeded.end(), whole.begin()));
}

TEST_CASE("Threads that read at once get the same bits") {
  const auto source = OpenRandomWeights("test-qwen3");
  REQUIRE(source.ok());
  const int64_t count = 300 * 172;
  std::vector<std::vector<uint16_t>> results(4, std::vector<uint16_t>(count));
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      (void)(*source)->Read("model.layers.0.mlp.gate_proj.weight", 0, count, DType::kBF16,
                            result.data());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) CHECK(result == results[0]);
  CHECK(results[0][0] != results[0][1]);
}

TEST_CASE("The first random weights of a preset never change") {
  const auto source = OpenRandomWeights("test-llama");
  REQUIRE(source.ok());
  std::vector<uint16_t> bits(6);
  REQUIRE((*source)->Read("model.embed_tokens.weight", 0, 6, DType::kBF16, bits.data()).ok());
  CHECK(bits == std::vector<uint16_t>{0x3cdc, 0xbc30, 0x3ccb, 0x3d1f, 0xbc24, 0xbbee});
  REQUIRE((*source)->Read("model.norm.weight", 0, 6, DType::kBF16, bits.data()).ok());
  CHECK(bits == std::vector<uint16_t>{0x3f83, 0x3f79, 0x3f77, 0x3f82, 0x3f74, 0x3f73});
}

TEST_CASE("A seed or a range that makes no sense is refused") {
  CHECK(!OpenRandomWeights("test-llama@").ok());
  CHECK(!OpenRandomWeights("test-llama@-1").ok());
  CHECK(!OpenRandomWeights("test-llama@18446744073709551616").ok());
  const auto source = OpenRandomWeights("test-llama@18446744073709551615");
  REQUIRE(source.ok());
  float x[4];
  CHECK(!(*source)->Read("model.norm.weight", 190, 4, DType::kF32, x).ok());
  CHECK(!(*source)->Read("model.norm.weight", -1, 1, DType::kF32, x).ok());
  CHECK(!(*source)->Read("model.norm.weight", 0, 1, DType::kI8, x).ok());
}
