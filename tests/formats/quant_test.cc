#include "formats/quant.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

using namespace eventide;

namespace {

std::vector<unsigned char> FromHex(const std::string& hex) {
  std::vector<unsigned char> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<unsigned char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

nlohmann::json Golden() {
  return nlohmann::json::parse(ReadFile(SourceFile("tests/golden/quant_blocks.json")));
}

std::vector<float> GoldenFloats(const nlohmann::json& entry) {
  std::vector<float> floats;
  const std::string hex = entry["float_bits"];
  for (size_t i = 0; i < hex.size(); i += 8) {
    floats.push_back(std::bit_cast<float>(uint32_t(std::stoul(hex.substr(i, 8), nullptr, 16))));
  }
  return floats;
}

}  // namespace

TEST_CASE("Every block format gives the bits that llama.cpp's Python package gives") {
  const nlohmann::json golden = Golden();
  CHECK(golden.size() == 8);
  for (const auto& item : golden.items()) {
    INFO(item.key());
    const auto format = FindQuantFormat(item.value()["type"]);
    REQUIRE(format.ok());
    CHECK(item.key() == format->name);
    const std::vector<unsigned char> bytes = FromHex(item.value()["bytes"]);
    const std::vector<float> expected = GoldenFloats(item.value());
    REQUIRE(int64_t(expected.size()) / format->block * format->block_bytes ==
            int64_t(bytes.size()));
    std::vector<float> got(expected.size());
    Dequantize(format->type, bytes.data(), 0, int64_t(got.size()), got.data());
    CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("Any range of a quantised tensor equals that part of the whole") {
  const nlohmann::json golden = Golden();
  for (const auto& item : golden.items()) {
    INFO(item.key());
    const auto format = FindQuantFormat(item.value()["type"]);
    const std::vector<unsigned char> bytes = FromHex(item.value()["bytes"]);
    const std::vector<float> whole = GoldenFloats(item.value());
    for (size_t first : {0, 1, 31, 33, 63}) {
      for (size_t count = 0; first + count <= whole.size(); count += 7) {
        std::vector<float> part(count + 1, -7.5f);
        Dequantize(format->type, bytes.data(), int64_t(first), int64_t(count), part.data());
        CHECK(std::memcmp(part.data(), whole.data() + first, count * sizeof(float)) == 0);
        CHECK(part[count] == -7.5f);
      }
    }
  }
}

TEST_CASE("Unquantised GGUF types pass through exactly") {
  const uint16_t halves[] = {F32ToF16(0.5f), F32ToF16(-3.0f)};
  const uint16_t brains[] = {F32ToBF16(0.5f), F32ToBF16(-3.0f)};
  const float floats[] = {0.1f, -3.0f};
  float out[2];
  Dequantize(QuantType::kF16, reinterpret_cast<const unsigned char*>(halves), 0, 2, out);
  CHECK((out[0] == 0.5f && out[1] == -3.0f));
  Dequantize(QuantType::kBF16, reinterpret_cast<const unsigned char*>(brains), 1, 1, out);
  CHECK(out[0] == -3.0f);
  Dequantize(QuantType::kF32, reinterpret_cast<const unsigned char*>(floats), 0, 2, out);
  CHECK(out[0] == 0.1f);
}

TEST_CASE("A tensor type that is not read is refused by its name") {
  CHECK_THAT(std::string(FindQuantFormat(10).status().message()),
             Catch::Matchers::Contains("Q2_K"));
  CHECK_THAT(std::string(FindQuantFormat(4).status().message()),
             Catch::Matchers::Contains("number 4"));
}
