// What an abort record says, in words.
#pragma once

#include "core/program.h"
#include "device/abi.h"

namespace eventide {

// An error that names worker, role, task, event element, seen and expected. `record.cause` is not
// kAbortNone.
absl::Status DescribeAbort(const Program& program, const AbortRecord& record);

// "qkv, layer 3, task (1, 2)".
std::string TaskText(const Program& program, int grid, int layer, const int (&at)[kMaxCoords]);
// "kv_done[3, 0]": the event and the index of an element of the bank.
std::string ElementText(const Program& program, int64_t element);

}  // namespace eventide
