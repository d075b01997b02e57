// What the records of an aborted step say, in words.
#pragma once

#include "absl/types/span.h"
#include "core/program.h"
#include "device/abi.h"

namespace eventide {

// Of all workers' records, that of the oldest task in linear order: workers take tasks in that order
// and wait for older ones only, so all others wait for it or behind it. Of the roles at that task, one
// that waits for an event explains the others. -1: no record is of a task that has not ended.
int OldestRecord(const Program& program, absl::Span<const AbortRecord> records);

// An error that names worker, role, task, event element, seen and expected of the oldest.
absl::Status DescribeAbort(const Program& program, absl::Span<const AbortRecord> records);

// "qkv, layer 3, task (1, 2)".
std::string TaskText(const Program& program, int grid, int layer, const int (&at)[kMaxCoords]);
// "kv_done[3, 0]": the event and the index of an element of the bank.
std::string ElementText(const Program& program, int64_t element);

}  // namespace eventide
