#include "runtime/ops.h"

#include "tests/support/test.h"

namespace eventide {
namespace {

TEST_CASE("every op is built for every instruction set of this machine and for the simulator") {
  const size_t ops = SimOps().size();
  CHECK(ops > 0);
  for (int isa = 0; isa <= BestCpuIsa(); ++isa) CHECK(CpuOps(isa).size() == ops);
  for (const int variant :
       {Storage<BF16>::kVariant, Storage<F16>::kVariant, Storage<float>::kVariant}) {
    const OpFunctions<CpuWorkerBase>* best = CpuOps(BestCpuIsa()).Find("linear", variant);
    const OpFunctions<CpuWorkerBase>* portable = CpuOps(kCpuPortable).Find("linear", variant);
    REQUIRE(best != nullptr);
    REQUIRE(portable != nullptr);
    // Each instruction set has code of its own.
    CHECK((best->compute != portable->compute) == (BestCpuIsa() != kCpuPortable));
  }
  CHECK(CpuOps(kCpuPortable).Find("no such op", 0) == nullptr);
}

}  // namespace
}  // namespace eventide
