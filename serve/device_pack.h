// Fills a device's weights by the device itself: the jobs of models/pack.h as orders of device/pack.h. Rows
// that are stored somewhere are read by threads into the packer's slots; rows that are drawn at random are
// only described. The bytes are those of PackWeights.
#pragma once

#include <functional>

#include "models/pack.h"
#include "runtime/device_packer.h"

namespace eventide {

// Where a program's tensor begins on the device.
using TensorAddress = std::function<uint64_t(int tensor)>;

// Storage of two bytes an element only. Beyond the tensors' own memory the device needs at most a tenth
// of it (the smallest models: 1 MiB), and no more than 128 MiB unless one tile asks for more. Progress
// counts packed bytes whose work has been handed to the device.
absl::Status PackOnDevice(const WeightSource& source, absl::Span<const PackJob> jobs,
                          const PackOptions& options, const TensorAddress& address,
                          DevicePacker& packer);

}  // namespace eventide
