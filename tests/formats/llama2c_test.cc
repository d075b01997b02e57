#include "formats/llama2c.h"

#include <cstring>

#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

using namespace eventide;

namespace {

std::string Header(std::vector<int32_t> fields) {
  return std::string(reinterpret_cast<const char*>(fields.data()), fields.size() * 4);
}

std::string Reason(const std::string& bytes) {
  const auto header = ParseLlama2cHeader(bytes, "file");
  REQUIRE(!header.ok());
  return std::string(header.status().message());
}

bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

const std::vector<int32_t> kGood = {16, 24, 2, 2, 1, 10, 4};

}  // namespace

TEST_CASE(
    "A llama2.c file lists its tensors, the classifier only where the vocabulary is negative") {
  TempFolder folder;
  for (bool shared : {true, false}) {
    std::vector<int32_t> fields = kGood;
    if (!shared) fields[5] = -10;
    uint64_t bytes = 0;
    const auto header = ParseLlama2cHeader(Header(fields), "file");
    REQUIRE(header.ok());
    CHECK(header->vocab == 10);
    CHECK(header->shared_classifier == shared);
    const auto layout = Llama2cLayout(*header, &bytes);
    CHECK(std::string(layout.back().name) == (shared ? "freq_cis_imag" : "wcls"));
    // Counted by hand: embedding, norms, attention (k and v half as wide), MLP, last norm, two
    // tables.
    const uint64_t floats = 160 + 32 + 2 * (256 + 128 + 128 + 256) + 32 + 3 * 2 * 384 + 16 + 2 * 16;
    CHECK(bytes == 28 + 4 * (floats + (shared ? 0 : 160)));
    WriteFile(folder / "m.bin", Header(fields) + std::string(bytes - 28, 'x'));
    CHECK(Llama2cFile::Open(folder / "m.bin").ok());
  }
}

TEST_CASE("A llama2.c file cut at any length or one byte too long is refused") {
  TempFolder folder;
  uint64_t bytes = 0;
  Llama2cLayout(*ParseLlama2cHeader(Header(kGood), "file"), &bytes);
  const std::string whole = Header(kGood) + std::string(bytes - 28, 'x');
  for (size_t length = 0; length < whole.size(); length += length < 40 ? 1 : 997) {
    INFO(length);
    WriteFile(folder / "m.bin", whole.substr(0, length));
    CHECK(!Llama2cFile::Open(folder / "m.bin").ok());
  }
  WriteFile(folder / "m.bin", whole + "x");
  CHECK(!Llama2cFile::Open(folder / "m.bin").ok());
}

TEST_CASE("Headers that no llama2.c file has are refused, whatever the size they imply") {
  for (size_t i = 0; i < 7; ++i) {
    for (int32_t value : {0, -1, INT32_MIN, INT32_MAX}) {
      if (i == 5 && value == -1) continue;  // an untied vocabulary of one
      std::vector<int32_t> fields = kGood;
      fields[i] = value;
      INFO(i << " " << value);
      CHECK(Has(Reason(Header(fields)), "not a llama2.c file?"));
    }
  }
  CHECK(Has(Reason(Header({16, 24, 2, 3, 1, 10, 4})), "do not go together"));
  CHECK(Has(Reason(Header({16, 24, 2, 4, 3, 10, 4})), "do not go together"));
  CHECK(Has(Reason(Header({0x616b3432, 1, 2, 3, 4, 5, 6})), "versioned format"));
  CHECK(Has(Reason("short"), "too few"));
}
