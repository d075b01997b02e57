#include "models/rope.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "models/presets.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

using namespace eventide;

namespace {

// llama3's rule in terms of wavelengths, in long double, written apart from the library's.
long double Llama3(const RopeConfig& rope, int head_dim, int i) {
  const long double wave =
      2 * std::acos(-1.0L) * std::pow((long double)rope.theta, 2.0L * i / head_dim);
  const long double longest = rope.original_max_positions / (long double)rope.low_freq_factor;
  const long double shortest = rope.original_max_positions / (long double)rope.high_freq_factor;
  const long double frequency = 2 * std::acos(-1.0L) / wave;
  if (wave < shortest) return frequency;
  if (wave > longest) return frequency / rope.factor;
  const long double smooth = (rope.original_max_positions / wave - rope.low_freq_factor) /
                             (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

TEST_CASE("llama3 tables follow the formula at near and far positions") {
  for (const char* name : {"llama-3.2-1b", "llama-3.1-8b"}) {
    const ModelConfig config = *PresetConfig(name);
    for (int position : {0, 1000, 8192, 60000}) {
      const RopeTable table = BuildRopeTable(config.rope, config.head_dim, position, 1);
      REQUIRE(table.cos.size() == size_t(config.head_dim / 2));
      for (int i = 0; i < table.half; ++i) {
        const long double angle = position * Llama3(config.rope, config.head_dim, i);
        // One float rounding, plus position * 2^-52 of angle error from computing in double.
        CHECK(std::abs(table.cos[size_t(i)] - std::cos(angle)) < 1e-7L);
        CHECK(std::abs(table.sin[size_t(i)] - std::sin(angle)) < 1e-7L);
      }
    }
  }
}

TEST_CASE("Inverse frequencies agree with transformers to float32 precision") {
  const auto golden = nlohmann::json::parse(ReadFile(SourceFile("tests/golden/rope.json")));
  REQUIRE(golden.size() == 4);
  for (const auto& item : golden) {
    const nlohmann::json& said = item["rope"];
    RopeConfig rope;
    rope.theta = said["rope_theta"];
    rope.factor = said.value("factor", 1.0);
    if (said["rope_type"] == "linear") rope.type = RopeType::kLinear;
    if (said["rope_type"] == "llama3") {
      rope.type = RopeType::kLlama3;
      rope.low_freq_factor = said["low_freq_factor"];
      rope.high_freq_factor = said["high_freq_factor"];
      rope.original_max_positions = said["original_max_position_embeddings"];
    }
    const std::vector<double> got = RopeInverseFrequencies(rope, item["head_dim"]);
    const std::vector<double> expected = item["inv_freq"];
    REQUIRE(got.size() == expected.size());
    // float32 pow and a division: a few units in the last place; the blend amplifies them little.
    for (size_t i = 0; i < got.size(); ++i) {
      CHECK(std::abs(got[i] - expected[i]) <= 2e-6 * expected[i]);
    }
  }
}

TEST_CASE("A rope table built in parts equals one built whole") {
  const RopeConfig rope;
  const RopeTable whole = BuildRopeTable(rope, 56, 20);
  const RopeTable part = BuildRopeTable(rope, 56, 7, 13);
  CHECK(std::equal(part.cos.begin(), part.cos.end(), whole.cos.begin() + 7 * 28));
  CHECK(std::equal(part.sin.begin(), part.sin.end(), whole.sin.begin() + 7 * 28));
  CHECK(whole.cos[0] == 1.0f);
  CHECK(whole.sin[0] == 0.0f);
}
