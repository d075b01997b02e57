// y[task] = checksum of its weights and of all records of two inputs (ops/page_sum.h); Compute
// keeps one page of each lane at once.
#pragma once

#include "ops/page_sum.h"

namespace eventide {

struct PageSum1 : PageSum<1> {
  static constexpr OpInfo kInfo = {
      "page_sum1", 4, {In("weights"), In("a"), In("b"), Out("y")}, 1, 1};
};

}  // namespace eventide
