// What the GPU's packing kernels compute, element by element on the host, and how jobs become batches.
#include "tests/support/pack_case.h"

namespace eventide {
namespace {

PackMemory OnHost(std::vector<std::vector<uint64_t>>* blocks) {
  PackMemory memory;
  memory.allocate = [blocks](int64_t bytes) {
    blocks->emplace_back((bytes + 7) / 8, 0xeeeeeeeeeeeeeeee);
    return reinterpret_cast<uint64_t>(blocks->back().data());
  };
  memory.download = [](uint64_t address, int64_t bytes) {
    const uint8_t* data = reinterpret_cast<const uint8_t*>(address);
    return std::vector<uint8_t>(data, data + bytes);
  };
  return memory;
}

TEST_CASE("orders for a device give the host packer's bytes, for odd shapes and all tile heights") {
  for (const char* preset : {"test-llama", "test-qwen3"}) {
    for (const int height : {16, 32, 64}) {
      for (const DType storage : {DType::kBF16, DType::kF16}) {
        for (const bool stored : {false, true}) {
          const auto source = PackSource(preset, stored);
          HostPacker packer;
          std::vector<std::vector<uint64_t>> blocks;
          INFO(preset << ", height " << height << ", " << DTypeName(storage) << ", "
                      << (stored ? "stored" : "drawn"));
          CheckPacked(*source, OddJobs(source->config(), height), storage, "cuda", packer,
                      OnHost(&blocks));
        }
      }
    }
  }
}

TEST_CASE("a whole decoder goes through several batches that fit a tenth of its weights") {
  const auto source = PackSource("test-llama", true);
  const std::vector<PackJob> jobs = AllJobs(source->config(), DType::kBF16);
  int64_t bytes = 0;
  for (const PackJob& job : jobs) bytes += PackedBytes(job, DType::kBF16);
  HostPacker packer;
  std::vector<std::vector<uint64_t>> blocks;
  CheckPacked(*source, jobs, DType::kBF16, "cuda", packer, OnHost(&blocks));
  CHECK(packer.batches() > 5);
  CHECK(packer.most_bytes() <= std::max<int64_t>(bytes / 40, 256 << 10) + 4096);
}

TEST_CASE("drawn weights take no reads: their whole model is a batch of descriptions") {
  const auto source = PackSource("test-qwen3", false);
  HostPacker packer;
  std::vector<std::vector<uint64_t>> blocks;
  CheckPacked(*source, AllJobs(source->config(), DType::kBF16), DType::kBF16, "cuda", packer,
              OnHost(&blocks));
  CHECK(packer.batches() == 1);
}

TEST_CASE("elements far into a large tensor are drawn as the host draws them") {
  const auto source = PackSource("llama-3.1-8b", false);
  HostPacker packer;
  std::vector<std::vector<uint64_t>> blocks;
  CheckPacked(*source, {LastRowsJob(source->config())}, DType::kBF16, "cuda", packer,
              OnHost(&blocks));
}

TEST_CASE("what cannot be packed on a device is refused in words") {
  const auto source = PackSource("test-llama", true);
  PackOptions options;
  options.order = FragmentOrderOf("cuda");
  const auto pack = [&](std::vector<PackJob> jobs) {
    HostPacker packer;
    std::vector<uint64_t> memory(1 << 20);
    const uint64_t address = reinterpret_cast<uint64_t>(memory.data());
    const absl::Status status =
        PackOnDevice(*source, jobs, options, [&](int) { return address; }, packer);
    CHECK_FALSE(status.ok());
    return std::string(status.message());
  };
  std::vector<PackJob> jobs = OddJobs(source->config(), 32);
  options.storage = DType::kF32;
  CHECK(pack(jobs).find("float32") != std::string::npos);
  options.storage = DType::kBF16;
  jobs[2].sources[1] = "model.layers.9.mlp.up_proj.weight";
  CHECK(pack(jobs).find("model.layers.9.mlp.up_proj.weight") != std::string::npos);
  jobs = OddJobs(source->config(), 32);
  jobs[2].spans[1].source_row = 1 << 20;
  CHECK(pack(jobs).find("model.embed_tokens.weight has") != std::string::npos);
  jobs = OddJobs(source->config(), 512);
  CHECK(pack(jobs).find("tiles of 512 rows") != std::string::npos);
}

// Fails after some reads, as a file on a broken disk would.
class Broken : public Stored {
 public:
  using Stored::Stored;
  absl::Status Read(absl::string_view name, int64_t first, int64_t count, DType as,
                    void* out) const override {
    if (reads_.fetch_add(1) > 20) return absl::DataLossError("the disk is broken");
    return Stored::Read(name, first, count, as, out);
  }

 private:
  mutable std::atomic<int> reads_{0};
};

TEST_CASE("an error while reading ends packing with that error") {
  const Broken source(RandomWeights(*PresetConfig("test-llama"), 7));
  PackOptions options;
  options.storage = DType::kBF16;
  options.order = FragmentOrderOf("cuda");
  options.threads = 4;
  const std::vector<PackJob> jobs = AllJobs(source.config(), DType::kBF16);
  std::map<int, std::vector<uint64_t>> memory;
  for (const auto& [tensor, bytes] : TensorBytes(jobs, DType::kBF16)) memory[tensor].resize(bytes / 8 + 1);
  HostPacker packer;
  const absl::Status status = PackOnDevice(
      source, jobs, options,
      [&](int tensor) { return reinterpret_cast<uint64_t>(memory.at(tensor).data()); }, packer);
  CHECK(status.code() == absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace eventide
