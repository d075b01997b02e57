#include "serve/loaded_decoder.h"

#include <cstring>
#include <memory>

#include "core/status.h"
#include "models/float16_gains.h"
#include "serve/device_pack.h"

namespace eventide {
namespace {

absl::Status Pack(const WeightSource& checkpoint, const LoadOptions& options,
                  const LoadedDecoder& loaded) {
  const Decoder& decoder = loaded.decoder;
  Executor& executor = *loaded.backend.executor;
  std::unique_ptr<WeightSource> scaled;
  if (decoder.storage == DType::kF16) {
    ASSIGN_OR_RETURN(scaled, WithFloat16Gains(checkpoint));
  }
  const WeightSource& source = scaled != nullptr ? *scaled : checkpoint;
  PackOptions pack;
  pack.storage = decoder.storage;
  pack.order = loaded.backend.order;
  pack.threads = options.pack_threads;
  pack.progress = options.pack_progress;
  pack.phases = options.backend.phases;
  if (loaded.backend.packer) {
    ASSIGN_OR_RETURN(const std::unique_ptr<DevicePacker> packer, loaded.backend.packer());
    const auto address = [&](int tensor) { return executor.TensorBuffer(tensor).address; };
    RETURN_IF_ERROR(PackOnDevice(source, decoder.weights, pack, address, *packer));
  } else {
    // The device's memory is the host's, and threads write different parts of it: no need for the
    // executor, which belongs to one thread at a time.
    const auto write = [&](int tensor, int64_t offset, const void* data, int64_t bytes) {
      const Buffer to = executor.TensorBuffer(tensor);
      RETURN_IF_ERROR(CheckRange(to, offset, bytes));
      std::memcpy(reinterpret_cast<char*>(to.address) + offset, data, static_cast<size_t>(bytes));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(PackWeights(source, decoder.weights, pack, write));
  }
  const std::vector<float> rope = RopeTensor(decoder, options.pack_threads);
  return executor.Write(executor.TensorBuffer(decoder.rope), 0, rope.data(),
                        static_cast<int64_t>(rope.size() * 4));
}

}  // namespace

absl::StatusOr<LoadedDecoder> LoadDecoder(const WeightSource& source, const LoadOptions& options) {
  PhaseLog* phases = options.backend.phases;
  LoadedDecoder loaded;
  ASSIGN_OR_RETURN(loaded.decoder, InPhase(phases, "graph", [&] {
                     return BuildDecoder(source.config(), options.storage, options.limits);
                   }));
  ASSIGN_OR_RETURN(Program program, InPhase(phases, "verify", [&] {
                     return Lower(loaded.decoder.graph, DecoderVerifyOptions(loaded.decoder));
                   }));
  ASSIGN_OR_RETURN(loaded.backend, MakeBackend(std::move(program), options.backend));
  RETURN_IF_ERROR(InPhase(phases, "pack", [&] { return Pack(source, options, loaded); }));
  return loaded;
}

absl::Status ResetCounters(const Decoder& decoder, Executor* executor) {
  for (const TensorId counter : {decoder.merge, decoder.arrived}) {
    const Buffer buffer = executor->TensorBuffer(counter);
    RETURN_IF_ERROR(executor->Fill(buffer, 0, 0, buffer.bytes));
  }
  return absl::OkStatus();
}

}  // namespace eventide
