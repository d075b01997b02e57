// Event elements: waiting for them, notifying them, and the report of a wait that never ends.
#pragma once

#include "device/abi.h"
#include "device/op.h"

namespace eventide {

// The elements one edge of one task names: a box of an event tensor's indices.
struct ElementBox {
  i32 event;
  i32 low[kMaxEventDims];
  i32 count[kMaxEventDims];

  EVT_FN i32 size() const { return count[0] * count[1] * count[2] * count[3]; }
  // The k-th element's index, last dim fastest.
  EVT_FN void Index(i32 k, i32 (&index)[kMaxEventDims]) const {
    for (int dim = kMaxEventDims - 1; dim > 0; --dim) {
      index[dim] = low[dim] + k % count[dim];
      k /= count[dim];
    }
    index[0] = low[0] + k;
  }
};

// Where an element's counter is in a bank.
EVT_FN u32* CounterAt(const ProgramRecord& program, u32 bank, i32 element) {
  return reinterpret_cast<u32*>(program.counters + bank * program.bank_bytes +
                                static_cast<u64>(element) * kEventStrideBytes);
}

// The word that ends a step early: not 0 once anyone has given the step up. Relaxed on both sides, for
// leaving needs no data, and the host reads the records when all workers have left.
EVT_FN u32* AbortWord(const ProgramRecord& program) {
  return reinterpret_cast<u32*>(program.abort);
}
EVT_FN AbortRecord& AbortRecordOf(const ProgramRecord& program, u32 worker, u32 role) {
  return reinterpret_cast<AbortRecord*>(program.abort + kEventStrideBytes)[worker * kRoles + role];
}

// Bounds a wait by the progress of the whole step, not by its own length: as long as any worker finishes
// tasks, waiting is fine. Poll Stalled() now and then.
template <class Sync>
struct ProgressWatch {
  u32 last_sum = 0;
  u64 since_ns = 0;

  EVT_FN bool Stalled(const ProgramRecord& program, u32 workers, u64 now_ns, u64 timeout_ns) {
    u32 sum = 0;
    for (u32 i = 0; i < workers; ++i) {
      sum += Sync::LoadRelaxed(
          reinterpret_cast<const u32*>(program.progress + u64{i} * kEventStrideBytes));
    }
    if (since_ns == 0 || sum != last_sum) {
      last_sum = sum;
      since_ns = now_ns;
      return false;
    }
    return now_ns - since_ns > timeout_ns;
  }
};

}  // namespace eventide
