#include "models/random_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "core/status.h"
#include "device/philox.h"
#include "models/presets.h"

namespace eventide {
namespace {

constexpr int kBlocks = 64;  // Philox blocks made at once: enough for vectors, small enough for L1
constexpr int kBatch = kBlocks * 4;

u64 SplitMix64(u64 x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Elements [4 * first_block, + kBatch). Compiled for wide vectors too, chosen when the program
// starts; every clone computes the same bits, since nothing in NormalFromBits may be rounded
// differently.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3")))
#endif
void MakeBatch(u64 key, u64 first_block, bool norm, float* out) {
  u32 lanes[4][kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    const PhiloxBlock block = Philox4x32(key, first_block + u64(i));
    for (int lane = 0; lane < 4; ++lane) lanes[lane][i] = block.lane[lane];
  }
  float normals[4][kBlocks];
  for (int i = 0; i < kBatch; ++i) {
    (&normals[0][0])[i] = DrawWeight((&lanes[0][0])[i], norm);
  }
  for (int i = 0; i < kBlocks; ++i) {
    for (int lane = 0; lane < 4; ++lane) out[4 * i + lane] = normals[lane][i];
  }
}

class RandomSource final : public WeightSource {
 public:
  RandomSource(ModelConfig config, u64 seed)
      : WeightSource(std::move(config)), seed_(seed), tensors_(ExpectedTensors(config_)) {
    for (size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  }

  std::vector<TensorInfo> Tensors() const override { return tensors_; }

  absl::StatusOr<TensorInfo> Info(absl::string_view name) const override {
    auto it = index_.find(name);
    if (it == index_.end()) return absl::NotFoundError(absl::StrCat("no tensor ", name));
    return tensors_[it->second];
  }

  std::optional<DrawnTensor> Drawn(absl::string_view name) const override {
    return DrawnTensor{RandomTensorKey(name, seed_), IsNormTensor(name)};
  }

  absl::Status Read(absl::string_view name, int64_t first, int64_t count, DType as,
                    void* out) const override {
    ASSIGN_OR_RETURN(const TensorInfo info, Info(name));
    RETURN_IF_ERROR(CheckRead(info, first, count, as));
    const u64 key = RandomTensorKey(name, seed_);
    const bool norm = IsNormTensor(name);
    float values[kBatch];
    unsigned char stored[kBatch * sizeof(float)];
    char* to = static_cast<char*>(out);
    while (count > 0) {
      const int64_t skip = first % 4;
      MakeBatch(key, u64(first / 4), norm, values);
      const int64_t n = std::min<int64_t>(count, kBatch - skip);
      // Through the stored type first: what is read does not depend on the type it is read as.
      ConvertElements(DType::kF32, values + skip, info.dtype, stored, size_t(n));
      ConvertElements(info.dtype, stored, as, to, size_t(n));
      to += n * int64_t(DTypeSize(as));
      first += n;
      count -= n;
    }
    return absl::OkStatus();
  }

 private:
  const u64 seed_;
  const std::vector<TensorInfo> tensors_;
  absl::flat_hash_map<std::string, size_t> index_;
};

}  // namespace

u64 RandomTensorKey(absl::string_view name, u64 seed) {
  u64 hash = 0xcbf29ce484222325ull;
  for (char c : name) hash = (hash ^ u64(static_cast<unsigned char>(c))) * 0x100000001b3ull;
  return SplitMix64(hash ^ SplitMix64(seed));
}

bool IsNormTensor(absl::string_view name) {
  return absl::EndsWith(name, "norm.weight");
}

std::unique_ptr<WeightSource> RandomWeights(ModelConfig config, u64 seed) {
  return std::make_unique<RandomSource>(std::move(config), seed);
}

absl::StatusOr<std::unique_ptr<WeightSource>> OpenRandomWeights(absl::string_view spec) {
  const size_t at = spec.find('@');
  uint64_t seed = 0;
  if (at != absl::string_view::npos && !absl::SimpleAtoi(spec.substr(at + 1), &seed)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", spec.substr(at + 1), "' is no seed: random:<preset>@<number from 0 to 2^64 - 1>"));
  }
  ASSIGN_OR_RETURN(ModelConfig config, PresetConfig(spec.substr(0, at)));
  return RandomWeights(std::move(config), seed);
}

}  // namespace eventide
