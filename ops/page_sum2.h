// y[task] = checksum of its weights and of all records of two inputs (ops/page_sum.h); Compute
// keeps two pages of the stream lane and one of the input lane at once.
#pragma once

#include "ops/page_sum.h"

namespace eventide {

struct PageSum2 : PageSum<2> {
  static constexpr OpInfo kInfo = {
      "page_sum2", 4, {In("weights"), In("a"), In("b"), Out("y")}, 2, 1};
};

}  // namespace eventide
