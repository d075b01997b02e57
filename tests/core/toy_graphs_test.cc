// The four things models do with device-resident values, written in the language, verified task by
// task with values that a sequential run of the ops gives.
#include "core/dump.h"
#include "core/verify.h"
#include "tests/support/graphs.h"
#include "tests/support/sequential.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

void CheckVerified(const Graph& graph) {
  const absl::StatusOr<Program> structure = Lower(graph);
  INFO(structure.status().ToString());
  REQUIRE(structure.ok());
  std::vector<std::string> notes;
  VerifyOptions options;
  options.sample_published = SequentialOracle(graph);
  options.published_samples = 6;
  options.notes = &notes;
  const absl::StatusOr<Program> program = Lower(graph, options);
  INFO(program.status().ToString());
  REQUIRE(program.ok());
  INFO(DumpText(*program));
  CHECK(notes.empty());
}

TEST_CASE("mixture of experts with empty experts needs no new concept") {
  CheckVerified(ToyMoeGraph());
}
TEST_CASE("speculative acceptance needs no new concept") {
  CheckVerified(ToySpeculationGraph());
}
TEST_CASE("block-sparse attention needs no new concept") {
  CheckVerified(ToySparseAttentionGraph());
}
TEST_CASE("early exit needs no new concept") {
  CheckVerified(ToyEarlyExitGraph());
}
TEST_CASE("layers that share scratch are verified over layers") {
  CheckVerified(ToyLayersSharedGraph());
}

}  // namespace
}  // namespace eventide
