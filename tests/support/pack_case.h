// Jobs of every kind packed by a DevicePacker, held against the host's packer byte for byte; and a packer
// that carries its orders out on the host.
#pragma once

#include <cstring>
#include <map>

#include "models/decoder.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "runtime/device_packer.h"
#include "serve/backend.h"
#include "serve/device_pack.h"
#include "tests/support/test.h"

namespace eventide {

// Does at once, in plain loops, what the kernels of device/arch/nvidia_pack.cuh do. A slot's device memory is
// apart from its host memory: orders that name the wrong one are caught.
class HostPacker : public DevicePacker {
 public:
  absl::Status Open(int slots, int64_t bytes) override {
    host_.assign(slots, Memory((bytes + 7) / 8, 0xabababababababab));
    device_ = host_;
    return absl::OkStatus();
  }
  absl::StatusOr<uint8_t*> Host(int slot) override {
    std::fill(host_[slot].begin(), host_[slot].end(), 0xabababababababab);
    return reinterpret_cast<uint8_t*>(host_[slot].data());
  }
  uint64_t Device(int slot) const override {
    return reinterpret_cast<uint64_t>(device_[slot].data());
  }
  absl::Status Submit(int slot, int64_t bytes, absl::Span<const PackOrder> orders) override {
    EVT_CHECK(bytes <= static_cast<int64_t>(host_[slot].size() * 8));
    std::memcpy(device_[slot].data(), host_[slot].data(), static_cast<size_t>(bytes));
    for (const PackOrder& order : orders) order.height > 0 ? Tiles(order) : Rows(order);
    ++batches_;
    most_ = std::max(most_, bytes);
    return absl::OkStatus();
  }
  absl::Status Finish() override {
    host_.clear();
    device_.clear();
    return absl::OkStatus();
  }

  int batches() const { return batches_; }
  int64_t most_bytes() const { return most_; }

 private:
  using Memory = std::vector<uint64_t>;

  static void Tiles(const PackOrder& order) {
    const int fragments = static_cast<int>(PackedTile(order.height, order.columns) / kFragment);
    std::vector<PackRow> rows(order.height);
    for (int tile = 0; tile < order.rows / order.height; ++tile) {
      for (int r = 0; r < order.height; ++r) rows[r] = FindPackRow(order, tile * order.height + r);
      for (int i = 0; i < fragments * kPackQuarters; ++i) {
        const u64 four = PackFour(order, rows.data(), i / kPackQuarters, i % kPackQuarters);
        const u64 at = u64(tile) * fragments * kPackQuarters + i;
        std::memcpy(reinterpret_cast<void*>(order.to + 8 * at), &four, 8);
      }
    }
  }
  static void Rows(const PackOrder& order) {
    for (u64 i = 0; i < u64(order.rows) * u64(order.columns); ++i) {
      reinterpret_cast<u16*>(order.to)[i] = PackPlain(order, i);
    }
  }

  std::vector<Memory> host_, device_;
  int batches_ = 0;
  int64_t most_ = 0;
};

// Another source's tensors as if they were stored: nothing is drawn.
class Stored : public WeightSource {
 public:
  explicit Stored(std::unique_ptr<WeightSource> source)
      : WeightSource(source->config()), source_(std::move(source)) {}
  std::vector<TensorInfo> Tensors() const override { return source_->Tensors(); }
  absl::StatusOr<TensorInfo> Info(absl::string_view name) const override {
    return source_->Info(name);
  }
  absl::Status Read(absl::string_view name, int64_t first, int64_t count, DType as,
                    void* out) const override {
    return source_->Read(name, first, count, as, out);
  }

 private:
  const std::unique_ptr<WeightSource> source_;
};

inline std::unique_ptr<WeightSource> PackSource(const char* preset, bool stored) {
  std::unique_ptr<WeightSource> source = RandomWeights(*PresetConfig(preset), 7);
  if (!stored) return source;
  return std::make_unique<Stored>(std::move(source));
}

// Rows from two tensors with rows of zeros between them, K no multiple of 16 where the model's is none; and
// vectors and plain rows at offsets and of lengths that no vector load would like.
inline std::vector<PackJob> OddJobs(const ModelConfig& config, int height) {
  const std::string layer = "model.layers.0.";
  std::vector<PackJob> jobs(3);
  PackJob& tiles = jobs[0];
  tiles.tensor = 0;
  tiles.offset = 512;
  tiles.form = PackForm::kTiles;
  tiles.height = height;
  tiles.rows = 3 * height;
  tiles.columns = config.hidden;
  tiles.sources = {layer + "self_attn.q_proj.weight", layer + "mlp.up_proj.weight"};
  tiles.spans = {{1, 0, 3, height / 2 + 1}, {height - 3, 1, 5, 7}, {height + 9, 0, 0, 1},
                 {2 * height, 1, 0, height - 1}};
  PackJob& vector = jobs[1];
  vector.tensor = 1;
  vector.offset = 6;
  vector.rows = config.hidden + 3;
  vector.columns = 1;
  vector.sources = {layer + "input_layernorm.weight"};
  vector.spans = {{2, 0, 1, 20}, {22, 0, 21, config.hidden - 21}};
  PackJob& plain = jobs[2];
  plain.tensor = 2;
  plain.rows = 301;
  plain.columns = config.hidden;
  plain.sources = {layer + "mlp.up_proj.weight", "model.embed_tokens.weight"};
  plain.spans = {{0, 0, 1, 100}, {101, 1, 2, 199}};
  return jobs;
}

// The last rows of the largest tensor that a preset has.
inline PackJob LastRowsJob(const ModelConfig& config) {
  PackJob job;
  job.tensor = 0;
  job.form = PackForm::kTiles;
  job.rows = 64;
  job.columns = config.hidden;
  job.sources = {"model.embed_tokens.weight"};
  job.spans = {{0, 0, config.vocab - 60, 60}};
  return job;
}

inline std::vector<PackJob> AllJobs(const ModelConfig& config, DType storage) {
  DecoderLimits limits;
  limits.num_blocks = 8;
  limits.max_model_len = 64;
  const absl::StatusOr<Decoder> decoder = BuildDecoder(config, storage, limits);
  EVT_CHECK(decoder.ok());
  return decoder->weights;
}

// Memory that the packer under test writes to: all bytes 0xee at first.
struct PackMemory {
  std::function<uint64_t(int64_t bytes)> allocate;
  std::function<std::vector<uint8_t>(uint64_t address, int64_t bytes)> download;
};

// Bytes of each tensor that jobs fill, with some behind that they must leave alone.
inline std::map<int, int64_t> TensorBytes(const std::vector<PackJob>& jobs, DType storage) {
  std::map<int, int64_t> bytes;
  for (const PackJob& job : jobs) {
    int64_t& most = bytes[job.tensor];
    most = std::max(most, job.offset + PackedBytes(job, storage) + 32);
  }
  return bytes;
}

// Packs with both and compares every byte.
inline void CheckPacked(const WeightSource& source, const std::vector<PackJob>& jobs, DType storage,
                        const char* device, DevicePacker& packer, const PackMemory& memory) {
  PhaseLog phases;
  PackOptions options;
  options.storage = storage;
  options.order = FragmentOrderOf(device);
  options.threads = 3;
  options.phases = &phases;
  int64_t last = 0, total = 0;
  options.progress = [&](int64_t done, int64_t all) {
    CHECK(done > last);
    last = done;
    total = all;
  };
  const std::map<int, int64_t> bytes = TensorBytes(jobs, storage);
  std::map<int, std::vector<uint8_t>> wanted;
  std::map<int, uint64_t> at;
  for (const auto& [tensor, size] : bytes) {
    wanted[tensor].assign(static_cast<size_t>(size), 0xee);
    at[tensor] = memory.allocate(size);
  }
  const absl::Status packed = PackOnDevice(
      source, jobs, options, [&](int tensor) { return at.at(tensor); }, packer);
  INFO(packed.ToString());
  REQUIRE(packed.ok());
  CHECK(total > 0);
  CHECK(last == total);
  const std::string drawn = jobs[0].sources[0];
  CHECK(phases.phases().empty() == source.Drawn(drawn).has_value());  // else: weights_read
  options.progress = nullptr;
  options.phases = nullptr;
  REQUIRE(PackWeights(source, jobs, options,
                      [&](int tensor, int64_t offset, const void* data, int64_t size) {
                        std::memcpy(wanted.at(tensor).data() + offset, data,
                                    static_cast<size_t>(size));
                        return absl::OkStatus();
                      })
              .ok());
  for (const auto& [tensor, size] : bytes) {
    const std::vector<uint8_t> got = memory.download(at.at(tensor), size);
    int64_t wrong = 0, first = -1;
    for (int64_t i = 0; i < size; ++i) {
      if (got[i] == wanted[tensor][i]) continue;
      if (wrong++ == 0) first = i;
    }
    INFO("tensor " << tensor << ", first at byte " << first << " of " << size);
    CHECK(wrong == 0);
  }
}

}  // namespace eventide
