// A decoder's program on a backend, with its weights in place: what runners are made of.
#pragma once

#include <functional>

#include "models/decoder.h"
#include "serve/backend.h"

namespace eventide {

struct LoadOptions {
  BackendOptions backend;  // its `phases` also take graph, verify, pack
  DType storage = DType::kF32;
  DecoderLimits limits;
  int pack_threads = 2;
  std::function<void(int64_t done, int64_t total)> pack_progress;
};

struct LoadedDecoder {
  Decoder decoder;
  Backend backend;
};

// `source` is read here only.
absl::StatusOr<LoadedDecoder> LoadDecoder(const WeightSource& source, const LoadOptions& options);

// After an aborted step: tasks that never ran have not put their counters back.
absl::Status ResetCounters(const Decoder& decoder, Executor* executor);

}  // namespace eventide
