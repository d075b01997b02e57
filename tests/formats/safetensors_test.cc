#include "formats/safetensors.h"

#include <cstring>

#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

using namespace eventide;

namespace {

std::string WithHeader(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  return bytes + header + data;
}

// Two tensors, a of four bytes and b of eight.
const char kHeader[] =
    R"({"a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"__metadata__":{"format":"pt"}})";
const std::string kData = "0123456789ab";

absl::Status Parse(const std::string& bytes) {
  uint64_t offset = 0;
  return ParseSafetensors(bytes, "file", &offset).status();
}

void CheckRefused(const std::string& header, const std::string& data, const std::string& reason) {
  const absl::Status status = Parse(WithHeader(header, data));
  INFO(header);
  INFO(status.message());
  REQUIRE(!status.ok());
  CHECK(std::string(status.message()).find(reason) != std::string::npos);
}

std::string One(const std::string& fields) {
  return "{\"t\":{" + fields + "}}";
}

}  // namespace

TEST_CASE("A well-formed safetensors file lists its tensors in order of offset") {
  uint64_t offset = 0;
  const std::string bytes = WithHeader(kHeader, kData);
  const auto entries = ParseSafetensors(bytes, "file", &offset);
  REQUIRE(entries.ok());
  REQUIRE(entries->size() == 2);
  CHECK((*entries)[0].name == "a");
  CHECK((*entries)[0].shape == std::vector<int64_t>{2, 1});
  CHECK((*entries)[1].dtype == DType::kF32);
  CHECK((*entries)[1].begin == 4);
  CHECK(bytes.substr(offset) == kData);
}

TEST_CASE("A safetensors file cut at any byte is refused") {
  const std::string bytes = WithHeader(kHeader, kData);
  REQUIRE(Parse(bytes).ok());
  for (size_t length = 0; length < bytes.size(); ++length) {
    INFO(length);
    CHECK(!Parse(bytes.substr(0, length)).ok());
  }
  CHECK(!Parse(bytes + "x").ok());
}

TEST_CASE("A safetensors file with any bit flipped is refused or still describes its own bytes") {
  const std::string bytes = WithHeader(kHeader, kData);
  for (size_t i = 0; i < 8 + sizeof(kHeader) - 1; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = char(flipped[i] ^ (1 << bit));
      uint64_t offset = 0;
      const auto entries = ParseSafetensors(flipped, "file", &offset);
      if (!entries.ok()) continue;
      for (const SafetensorsEntry& entry : *entries) {
        CHECK(entry.end <= flipped.size() - offset);
        uint64_t elements = 1;
        for (int64_t extent : entry.shape) elements *= uint64_t(extent);
        CHECK(elements * DTypeSize(entry.dtype) == entry.end - entry.begin);
      }
    }
  }
}

TEST_CASE("Faulty safetensors headers are refused, each with its reason") {
  CheckRefused(" {}", "", "start with '{'");
  CheckRefused("[]", "", "start with '{'");
  CheckRefused("{", "", "not valid JSON");
  CheckRefused("{\"a\":1,\"a\":2}", "", "appears twice");
  CheckRefused("{\"a\":1}", "", "not an object");
  CheckRefused(One(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"shape":[1])"), "0123",
               "appears twice");
  CheckRefused(One(R"("dtype":"F31","shape":[1],"data_offsets":[0,4])"), "0123", "F31");
  CheckRefused(One(R"("dtype":"F32","shape":[1])"), "", "data_offsets");
  CheckRefused(One(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "0123", "bad extent");
  CheckRefused(One(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), "0123", "bad extent");
  CheckRefused(One(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "0123", "needs 8 bytes");
  CheckRefused(One(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), "0123", "data_offsets");
  CheckRefused(One(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), "0123", "truncated");
  CheckRefused(One(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "01234567", "hole");
  CheckRefused(One(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "01234567",
               "belong to no tensor");
  CheckRefused(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
               "0123", "inside the one before");
  CheckRefused("{\"__metadata__\":{\"a\":1}}", "", "not a string");
  CheckRefused(One(R"("dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615])"), "0123",
               "data_offsets");
  CheckRefused(One(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), "",
               "overflows");
  CheckRefused(std::string(200, '[').insert(0, "{\"a\":"), "", "nested deeper");
}

TEST_CASE("A header length beyond the cap or the file is refused before anything is read") {
  std::string bytes = WithHeader(kHeader, kData);
  const uint64_t huge = kMaxSafetensorsHeaderBytes + 1;
  std::memcpy(bytes.data(), &huge, 8);
  CHECK(std::string(Parse(bytes).message()).find("limit") != std::string::npos);
  CHECK(!Parse(std::string(8, '\xff')).ok());
  CHECK(!Parse(std::string(8, '\0')).ok());
}

TEST_CASE("Empty tensors and tensors of rank 0 are legal") {
  uint64_t offset = 0;
  const auto entries =
      ParseSafetensors(WithHeader(R"({"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},)"
                                  R"("s":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}   )",
                                  "01234567"),
                       "file", &offset);
  REQUIRE(entries.ok());
  CHECK(entries->size() == 2);
}

TEST_CASE("Shards are joined by their index, which must agree with them") {
  TempFolder folder;
  const std::string tensor = R"("dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
  WriteFile(folder / "one.safetensors", WithHeader("{\"a\":{" + tensor, "A"));
  WriteFile(folder / "two.safetensors", WithHeader("{\"b\":{" + tensor, "B"));
  auto open = [&](const std::string& map) {
    WriteFile(folder / "model.safetensors.index.json", "{\"weight_map\":" + map + "}");
    return Safetensors::OpenFolder(folder.path());
  };
  auto good = open(R"({"a":"one.safetensors","b":"two.safetensors"})");
  REQUIRE(good.ok());
  REQUIRE((*good)->Find("b") != nullptr);
  CHECK(*static_cast<const char*>((*good)->Find("b")->data) == 'B');
  CHECK((*good)->Find("c") == nullptr);

  auto reason = [&](const std::string& map) { return std::string(open(map).status().message()); };
  CHECK(reason(R"({"a":"one.safetensors","b":"one.safetensors"})").find("tensor b should be in") !=
        std::string::npos);
  CHECK(reason(R"({"b":"two.safetensors","c":"one.safetensors"})").find("tensor a is in") !=
        std::string::npos);
  CHECK(reason(R"({"a":"../one.safetensors"})").find("not mapped to a file name") !=
        std::string::npos);
  CHECK(reason(R"({"a":"three.safetensors"})").find("cannot open") != std::string::npos);
  CHECK(reason("{}").find("missing or empty") != std::string::npos);
}

TEST_CASE("A written header reads back as the same tensors") {
  std::vector<SafetensorsEntry> entries(2);
  entries[0] = {"x", DType::kF16, {3, 5}, 0, 0};
  entries[1] = {"y \"quoted\"", DType::kF32, {2}, 0, 0};
  const std::string header = SafetensorsHeader(&entries);
  CHECK(header.size() % 8 == 0);
  uint64_t offset = 0;
  const auto read = ParseSafetensors(header + std::string(38, 'x'), "file", &offset);
  REQUIRE(read.ok());
  CHECK(offset == header.size());
  CHECK((*read)[1].name == entries[1].name);
  CHECK((*read)[1].begin == 30);
  CHECK((*read)[0].shape == entries[0].shape);
}
