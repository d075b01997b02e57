#include "formats/gguf.h"

#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

using namespace eventide;

namespace {

using B = GgufBuilder;

GgufBuilder Small() {
  GgufBuilder builder;
  builder.U32("answer", 42).String("name", "x").F32("eps", 0.5f);
  builder.Key("list", 9,
              B::Bytes(uint32_t{8}) + B::Bytes(uint64_t{2}) + B::Text("p") + B::Text(""));
  builder.Tensor("t", {2, 3}, 0, FloatBytes({1, 2, 3, 4, 5, 6}));
  builder.Tensor("q", {32}, 8, std::string(34, '\x01'));
  return builder;
}

std::string Reason(const std::string& bytes) {
  const auto file = GgufFile::Parse(bytes, "file");
  REQUIRE(!file.ok());
  return std::string(file.status().message());
}

std::string Reason(const GgufBuilder& builder) {
  return Reason(builder.Build());
}

bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("A GGUF file gives its metadata and its tensors, shapes slowest first") {
  const std::string bytes = Small().Build();
  const auto file = GgufFile::Parse(bytes, "file");
  REQUIRE(file.ok());
  CHECK(*(*file)->Integer("answer", 0, 100) == 42);
  CHECK(*(*file)->Text("name") == "x");
  CHECK(*(*file)->Number("eps", 0) == 0.5);
  CHECK(*(*file)->Texts("list") == std::vector<std::string>{"p", ""});
  const GgufTensor* tensor = (*file)->FindTensor("t");
  REQUIRE(tensor != nullptr);
  CHECK(tensor->shape == std::vector<int64_t>{3, 2});
  float values[6];
  Dequantize(tensor->type, tensor->data, 0, 6, values);
  CHECK(values[5] == 6.0f);
  CHECK((*file)->FindTensor("q")->bytes == 34);
}

TEST_CASE("Every type of metadata value is read, arrays of arrays included") {
  GgufBuilder builder;
  builder.Key("u8", 0, B::Bytes(uint8_t{255}))
      .Key("i8", 1, B::Bytes(int8_t{-1}))
      .Key("u16", 2, B::Bytes(uint16_t{65535}))
      .Key("i16", 3, B::Bytes(int16_t{-2}))
      .Key("i32", 5, B::Bytes(int32_t{-3}))
      .Key("bool", 7, B::Bytes(uint8_t{1}))
      .Key("u64", 10, B::Bytes(uint64_t{1} << 63))
      .Key("i64", 11, B::Bytes(int64_t{-4}))
      .Key("f64", 12, B::Bytes(0.1))
      .Key("nested", 9,
           B::Bytes(uint32_t{9}) + B::Bytes(uint64_t{1}) + B::Bytes(uint32_t{0}) +
               B::Bytes(uint64_t{2}) + "\x05\x06");
  const std::string bytes = builder.Build();
  const auto file = GgufFile::Parse(bytes, "file");
  REQUIRE(file.ok());
  auto integer = [&](const char* key) { return (*file)->Find(key)->integer(); };
  CHECK(integer("u8") == 255);
  CHECK(integer("i8") == -1);
  CHECK(integer("u16") == 65535);
  CHECK(integer("i16") == -2);
  CHECK(integer("i32") == -3);
  CHECK(integer("i64") == -4);
  CHECK(!integer("u64"));
  CHECK(std::get<uint64_t>((*file)->Find("u64")->variant()) == uint64_t{1} << 63);
  CHECK(*(*file)->Find("bool")->boolean());
  CHECK((*file)->Find("f64")->number() == 0.1);
  const GgufValue& inner = (*(*file)->Find("nested")->array())[0];
  CHECK((*inner.array())[1].integer() == 6);
}

TEST_CASE("A GGUF file cut at any byte is refused") {
  const std::string bytes = Small().Build();
  for (size_t length = 0; length < bytes.size(); ++length) {
    INFO(length);
    CHECK(!GgufFile::Parse(absl::string_view(bytes).substr(0, length), "file").ok());
  }
}

TEST_CASE("A GGUF file with any bit flipped is refused or keeps its tensors inside the file") {
  const std::string bytes = Small().Build();
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = char(flipped[i] ^ (1 << bit));
      const auto file = GgufFile::Parse(flipped, "file");
      if (!file.ok()) continue;
      const auto* end = reinterpret_cast<const unsigned char*>(flipped.data()) + flipped.size();
      for (const GgufTensor& tensor : (*file)->tensors()) {
        REQUIRE(tensor.data + tensor.bytes <= end);
        REQUIRE(tensor.Elements() / QuantFormatOf(tensor.type).block *
                    QuantFormatOf(tensor.type).block_bytes ==
                int64_t(tensor.bytes));
      }
    }
  }
}

TEST_CASE("Counts and sizes that the file cannot hold are refused before they are allocated") {
  const uint64_t huge = ~uint64_t{0};
  GgufBuilder builder = Small();
  builder.tensor_count = huge;
  CHECK(Has(Reason(builder), "tensors; the limit"));
  builder = Small();
  builder.key_count = huge;
  CHECK(Has(Reason(builder), "metadata keys; the limit"));
  CHECK(Has(Reason(GgufBuilder().Key("s", 8, B::Bytes(huge))), "a string of"));
  CHECK(Has(Reason(GgufBuilder().Key("a", 9, B::Bytes(uint32_t{0}) + B::Bytes(huge))),
            "an array of"));
  CHECK(Has(Reason(GgufBuilder().Key(
                "a", 9, B::Bytes(uint32_t{8}) + B::Bytes(uint64_t{100}) + std::string(100, '\0'))),
            "an array of"));
  const std::vector<uint64_t> wide(4, uint64_t{1} << 20);
  CHECK(Has(Reason(GgufBuilder().Tensor("t", wide, 0, "")), "overflows"));
  CHECK(Has(Reason(GgufBuilder().Tensor("t", {uint64_t{1} << 62}, 0, "")), "tensor t"));
  CHECK(Has(Reason(GgufBuilder().Tensor("t", {uint64_t{1} << 40}, 0, "")), "truncated"));
  CHECK(Has(Reason(GgufBuilder().TensorAt("t", {8}, 0, ~uint64_t{31}, "")), "truncated"));
}

TEST_CASE("Faulty GGUF files are refused, each with its reason") {
  GgufBuilder builder = Small();
  builder.magic = "GGUX";
  CHECK(Has(Reason(builder), "does not start with GGUF"));
  builder = Small();
  builder.version = 1;
  CHECK(Has(Reason(builder), "version 1"));
  builder.version = 3u << 24;
  CHECK(Has(Reason(builder), "big-endian"));
  CHECK(Has(Reason(Small().U32("answer", 1)), "answer appears twice"));
  CHECK(Has(Reason(Small().Tensor("t", {1}, 0, "abcd")), "tensor t: appears twice"));
  CHECK(Has(Reason(GgufBuilder().Key("k", 13, "")), "value type 13"));
  CHECK(Has(Reason(GgufBuilder().Key("k", 7, "\x02")), "truth value of 2"));
  CHECK(Has(Reason(GgufBuilder().U32("general.alignment", 48)), "no power of two"));
  CHECK(Has(Reason(GgufBuilder().U32("general.alignment", 0)), "general.alignment is 0"));
  CHECK(Has(Reason(GgufBuilder().Tensor("t", {1, 1, 1, 1, 1}, 0, "")), "5 dimensions"));
  CHECK(Has(Reason(GgufBuilder().Tensor("t", {0}, 0, "")), "extent of 0"));
  CHECK(Has(Reason(GgufBuilder().Tensor("t", {33}, 8, "")), "rows of 33 elements"));
  CHECK(Has(Reason(GgufBuilder().Tensor("t", {256}, 10, "")), "Q2_K"));
  CHECK(Has(Reason(GgufBuilder().TensorAt("t", {1}, 0, 4, "abcd")), "not a multiple of 32"));
  CHECK(Has(Reason(GgufBuilder()
                       .TensorAt("t", {16}, 0, 0, std::string(64, 'a'))
                       .TensorAt("u", {1}, 0, 32, "abcd")),
            "overlap"));
  std::string deep;
  for (int i = 0; i < 6; ++i) deep += B::Bytes(uint32_t{9}) + B::Bytes(uint64_t{1});
  CHECK(Has(Reason(GgufBuilder().Key("k", 9, deep + std::string(64, '\0'))), "nested deeper"));
}
