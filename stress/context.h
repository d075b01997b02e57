// What the cases of a run share: the device under test, faults that tests plant, and the models
// that were made last (making one costs a hundred times what a case does).
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "serve/megakernel_runner.h"
#include "stress/case.h"

namespace eventide {

// Faults planted in what is under test, never in the reference; for tests of the stress itself.
struct StressFaults {
  std::function<void(Program*)> program;  // of random graphs, after it was verified
  // Of one step of `rows` rows: logits as they were read.
  std::function<void(int rows, std::vector<float>* logits)> logits;
  // Around the runner that the engine is given; both live as long as the case.
  std::function<std::unique_ptr<StepRunner>(StepRunner*)> runner;
};

// A model and two runners of it: the one under test and one that takes nothing but the plain way
// (one CPU worker, static; on CUDA the same device with few workers, since only a backend's own
// bits are promised).
struct StressModel {
  std::string key;
  std::unique_ptr<WeightSource> source;
  DType storage = DType::kF32;
  std::unique_ptr<MegakernelRunner> tested, reference;
};

class StressContext {
 public:
  StressContext(std::string device, StressFaults faults)
      : device_(std::move(device)), faults_(std::move(faults)) {}

  const std::string& device() const { return device_; }
  const StressFaults& faults() const { return faults_; }

  // The model that a case's fields describe; an error says why there is no such model.
  absl::StatusOr<StressModel*> Model(const StressCase& c);

 private:
  const std::string device_;
  const StressFaults faults_;
  std::unique_ptr<StressModel> last_;
};

// Fields of a random architecture, with the odd ones that break kernels, and of how it is run.
void RandomModel(StressRandom* random, const std::string& device, StressCase* c);

// `count` token ids below the vocabulary, made from `seed`.
std::vector<TokenId> StressTokens(int64_t count, int vocab, uint64_t seed);

}  // namespace eventide
