#include "tests/ops/page_sum_case.h"

namespace eventide {
namespace {

TEST_CASE("checksums read all of their pages once and in order, on every host backend") {
  for (const OpBackend& backend : HostBackends()) CheckPageSums(backend);
}

}  // namespace
}  // namespace eventide
