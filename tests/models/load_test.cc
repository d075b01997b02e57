#include "models/load.h"

#include <algorithm>
#include <cstring>

#include "models/export.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

using namespace eventide;

namespace {

std::string ReadAll(const WeightSource& source, const std::string& name, DType as) {
  const auto info = source.Info(name);
  REQUIRE(info.ok());
  std::string bytes(size_t(info->Elements()) * DTypeSize(as), '\0');
  REQUIRE(source.Read(name, 0, info->Elements(), as, bytes.data()).ok());
  return bytes;
}

std::string Reason(const std::string& spec) {
  const auto source = OpenModel(spec);
  REQUIRE(!source.ok());
  return std::string(source.status().message());
}

bool Has(const std::string& text, const std::string& part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

// A llama of one layer: hidden 32, two heads of 16, one KV head. Element values count up, so that
// each names its place in the file.
struct Counting {
  GgufBuilder builder;
  float next = 0;
  std::string skip;

  void Add(const std::string& name, const std::vector<uint64_t>& dims) {
    uint64_t elements = 1;
    for (uint64_t dim : dims) elements *= dim;
    std::vector<float> values(elements);
    for (float& x : values) x = next++;
    if (name != skip) builder.Tensor(name, dims, 0, FloatBytes(values));
  }
  std::string Build() {
    builder.String("general.architecture", "llama");
    builder.U32("llama.embedding_length", 32).U32("llama.feed_forward_length", 24);
    builder.U32("llama.block_count", 1).U32("llama.attention.head_count", 2);
    builder.U32("llama.attention.head_count_kv", 1).U32("llama.context_length", 64);
    builder.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    Add("token_embd.weight", {32, 10});
    for (const char* norm : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}) Add(norm, {32});
    Add("blk.0.attn_q.weight", {32, 32});
    Add("blk.0.attn_k.weight", {32, 16});
    Add("blk.0.attn_v.weight", {32, 16});
    Add("blk.0.attn_output.weight", {32, 32});
    for (const char* up : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"}) Add(up, {32, 24});
    Add("blk.0.ffn_down.weight", {24, 32});
    Add("output_norm.weight", {32});
    return builder.Build();
  }
};

}  // namespace

TEST_CASE("A model exported and loaded again has the same bits, in one file or in shards") {
  for (const char* spec : {"random:test-llama", "random:test-qwen3@9", "random:test-moe"}) {
    for (int64_t limit : {int64_t{1} << 32, int64_t{150000}}) {
      INFO(spec << " " << limit);
      TempFolder folder;
      const auto source = OpenModel(spec);
      REQUIRE(source.ok());
      ExportOptions options;
      options.max_shard_bytes = limit;
      int64_t reported = 0;
      options.progress = [&](int64_t done, int64_t) { reported = done; };
      REQUIRE(ExportHuggingFace(**source, DType::kBF16, folder / "m", options).ok());
      const auto loaded = OpenModel(folder / "m");
      INFO(loaded.status().message());
      REQUIRE(loaded.ok());
      CHECK((*loaded)->config() == (*source)->config());
      int64_t bytes = 0;
      for (const TensorInfo& info : (*source)->Tensors()) {
        const std::string expected = ReadAll(**source, info.name, DType::kBF16);
        CHECK(ReadAll(**loaded, info.name, DType::kBF16) == expected);
        REQUIRE((*loaded)->Raw(info.name) != nullptr);
        CHECK(std::memcmp((*loaded)->Raw(info.name), expected.data(), expected.size()) == 0);
        bytes += int64_t(expected.size());
      }
      CHECK(reported == bytes);
      CHECK(std::filesystem::exists(folder / "m/model.safetensors") == (limit > 1 << 20));
    }
  }
}

TEST_CASE("An export that is stopped leaves nothing, wherever it is, and what was there before") {
  const auto source = OpenModel("random:test-llama");
  ExportOptions options;
  options.max_shard_bytes = 150000;
  options.files = {{"tokenizer.json", "{}"}};
  TempFolder folder;
  WriteFile(folder / "notes", "x");
  int writes = 0;
  options.progress = [&](int64_t, int64_t) { ++writes; };
  REQUIRE(ExportHuggingFace(**source, DType::kBF16, folder / "whole", options).ok());
  REQUIRE(writes > 5);
  options.progress = nullptr;
  for (int stop = 1; stop <= writes; ++stop) {
    CAPTURE(stop);
    int asked = 0;
    options.stop = [&] { return ++asked == stop; };
    const std::string output = stop % 2 == 1 ? folder / "new/newer" : folder.path();
    CHECK(absl::IsCancelled(ExportHuggingFace(**source, DType::kBF16, output, options)));
    CHECK_FALSE(std::filesystem::exists(folder / "new"));
    CHECK(ReadFile(folder / "notes") == "x");
    int entries = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) entries += entry.exists();
    CHECK(entries == 2);  // notes and whole
  }
}

TEST_CASE("Export keeps what is there and leaves nothing half-written") {
  TempFolder folder;
  const auto source = OpenModel("random:test-llama");
  REQUIRE(ExportHuggingFace(**source, DType::kF32, folder.path()).ok());
  CHECK(ExportHuggingFace(**source, DType::kF32, folder.path()).code() ==
        absl::StatusCode::kAlreadyExists);
  CHECK(!ExportHuggingFace(**source, DType::kI8, folder / "i8").ok());
  WriteFile(folder / "file", "x");
  CHECK(!ExportHuggingFace(**source, DType::kF32, folder / "file").ok());
  const std::string too_long = folder / "new/" + std::string(300, 'x');
  CHECK(!ExportHuggingFace(**source, DType::kF32, too_long).ok());
  CHECK_FALSE(std::filesystem::exists(folder / "new"));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    CHECK(entry.path().extension() != ".partial");
  }
}

TEST_CASE("Q and K rows of a GGUF llama come out in half-rotation order") {
  TempFolder folder;
  WriteFile(folder / "m.gguf", Counting().Build());
  const auto source = OpenModel(folder / "m.gguf");
  INFO(source.status().message());
  REQUIRE(source.ok());
  CHECK((*source)->config().tie_embeddings);
  CHECK((*source)->config().head_dim == 16);
  float q[32 * 32], v[16 * 32];
  REQUIRE((*source)->Read("model.layers.0.self_attn.q_proj.weight", 0, 1024, DType::kF32, q).ok());
  REQUIRE((*source)->Read("model.layers.0.self_attn.v_proj.weight", 0, 512, DType::kF32, v).ok());
  // Element 0 of attn_q is number 320 + 64 of the file. Row i of a half is the file's row 2i, row
  // 8 + i its row 2i + 1, head by head.
  for (int head = 0; head < 2; ++head) {
    for (int i = 0; i < 8; ++i) {
      for (int column : {0, 31}) {
        CHECK(q[(head * 16 + i) * 32 + column] == 384 + (head * 16 + 2 * i) * 32 + column);
        CHECK(q[(head * 16 + 8 + i) * 32 + column] == 384 + (head * 16 + 2 * i + 1) * 32 + column);
      }
    }
  }
  CHECK(v[0] == 384 + 1024 + 512);
  CHECK((*source)->Raw("model.layers.0.self_attn.q_proj.weight") == nullptr);
  CHECK((*source)->Raw("model.layers.0.self_attn.v_proj.weight") != nullptr);
  float part[40];
  REQUIRE(
      (*source)->Read("model.layers.0.self_attn.q_proj.weight", 250, 40, DType::kF32, part).ok());
  CHECK(std::equal(part, part + 40, q + 250));
}

TEST_CASE("A tensor that is missing, extra or misshaped is refused by its name") {
  TempFolder folder;
  const std::string path = folder / "m.gguf";
  Counting missing;
  missing.skip = "blk.0.ffn_up.weight";
  WriteFile(path, missing.Build());
  CHECK(Has(Reason(path), "missing model.layers.0.mlp.up_proj.weight"));
  Counting extra;
  extra.Add("blk.0.attn_qkv.weight", {32});
  extra.Add("blk.1.attn_v.weight", {32, 16});
  WriteFile(path, extra.Build());
  CHECK(Has(Reason(path), "extra blk.0.attn_qkv.weight, model.layers.1.self_attn.v_proj.weight"));
  Counting misshaped;
  misshaped.skip = "blk.0.attn_k.weight";
  misshaped.builder.Tensor("blk.0.attn_k.weight", {32, 8}, 0, std::string(1024, '\0'));
  WriteFile(path, misshaped.Build());
  CHECK(Has(Reason(path),
            "misshaped model.layers.0.self_attn.k_proj.weight (is [8, 32], should be [16, 32])"));
  const std::string whole = Counting().Build();
  WriteFile(path, whole.substr(0, whole.size() - 1));
  CHECK(Has(Reason(path), "tensor output_norm.weight"));
}

TEST_CASE("A model that is none of the accepted forms gets an answer that lists them") {
  TempFolder folder;
  CHECK(Has(Reason(folder / "nothing"), "llama2.c .bin file, or random:<preset>"));
  CHECK(Has(Reason("random:llama-9"), "known: llama-3.2-1b"));
  CHECK(Has(Reason(folder.path()), "config.json"));
  WriteFile(folder / "a.txt", "hello");
  CHECK(Has(Reason(folder / "a.txt"), "not a known file"));
  WriteFile(folder / "model.safetensors", "hello");
  CHECK(Has(Reason(folder / "model.safetensors"), "give the folder"));
  WriteFile(folder / "a.gguf", "hello");
  CHECK(Has(Reason(folder / "a.gguf"), "does not start with GGUF"));
  WriteFile(folder / "a.bin", std::string(28, '\x01'));
  CHECK(Has(Reason(folder / "a.bin"), "not a llama2.c file?"));
}

TEST_CASE("stories260K loads with its true shape, cut or padded it is refused") {
  const auto path = TestData("models/stories260K.bin");
  if (!path) return Skip("models/stories260K.bin is not in the test data");
  const auto source = OpenModel(*path);
  INFO(source.status().message());
  REQUIRE(source.ok());
  CHECK((*source)->config().intermediate == 172);
  CHECK((*source)->config().kv_heads == 4);
  CHECK((*source)->config().tie_embeddings);
  const std::string bytes = ReadFile(*path);
  const std::string wq = ReadAll(**source, "model.layers.0.self_attn.q_proj.weight", DType::kF32);
  // Embedding 512 x 64 and 5 x 64 norms come first; row 1 of the half order is the file's row 2.
  const size_t at = 28 + 4 * (512 * 64 + 5 * 64);
  CHECK(wq.substr(0, 256) == bytes.substr(at, 256));
  CHECK(wq.substr(256, 256) == bytes.substr(at + 512, 256));
  CHECK(wq.substr(1024, 256) == bytes.substr(at + 256, 256));
  TempFolder folder;
  WriteFile(folder / "cut.bin", bytes.substr(0, bytes.size() / 2));
  CHECK(Has(Reason(folder / "cut.bin"), "truncated in tensor w"));
  WriteFile(folder / "long.bin", bytes + "x");
  CHECK(Has(Reason(folder / "long.bin"), "its header implies"));
}
