// A table of the checksum ops alone, for workers of a type that the tests choose.
#pragma once

#include "ops/page_sum1.h"
#include "ops/page_sum2.h"
#include "ops/publish_count.h"
#include "runtime/op_table.h"

namespace eventide {

// (W: Worker or its base.)
template <class Worker, class W>
OpTable<W> RuntimeTestOps() {
  OpTable<W> table;
  AddOp<PageSum1, Worker, W>(table);
  AddOp<PageSum2, Worker, W>(table);
  AddOp<PublishCount, Worker, W>(table);
  return table;
}

}  // namespace eventide
