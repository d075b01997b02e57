// Pages of a worker that the host asks for: what ops state, what a port's tiles hold, what each GPU has.
#include "jit/page_floors.h"

#include "device/abi.h"
#include "models/decoder.h"
#include "models/presets.h"
#include "tests/jit/toy_graphs.h"

namespace eventide {
namespace {

Program DecoderProgram() {
  DecoderLimits limits;
  limits.num_blocks = 1024;
  const auto decoder = BuildDecoder(*PresetConfig("test-llama"), DType::kBF16, limits);
  REQUIRE(decoder.ok());
  absl::StatusOr<Program> program = Lower(decoder->graph, DecoderVerifyOptions(*decoder));
  REQUIRE(program.ok());
  return *std::move(program);
}

TEST_CASE("floors are the largest of the ops and of the port, and each lane has a page") {
  const PageFloors toy = FloorsOf(*Lower(ToyCountGraph()), 0);
  CHECK((toy.stream == 1 && toy.input == 1));
  const Program program = DecoderProgram();
  const PageFloors ops = FloorsOf(program, 0), port = FloorsOf(program, 3);
  CHECK((ops.stream == 1 && ops.input == 2));
  CHECK((port.stream == 3 && port.input == 2));
}

TEST_CASE("every GPU has the pages that a decoder needs there, and one with fewer is refused") {
  const Program program = DecoderProgram();
  for (const GpuArch& arch : GpuArchs()) {
    CAPTURE(arch.name);
    const int not_pages = kWorkerStateBytes + kScratchBytes + kKeptBytes;
    const int pages = (arch.shared_bytes - not_pages) / static_cast<int>(kPageBytes);
    CHECK(CheckPages(program, arch, pages, arch.name).ok());
    const PageFloors floors = FloorsOf(program, arch.stream_floor);
    CHECK(CheckPages(program, arch, floors.stream + floors.input, "a GPU").ok());
    const absl::Status few = CheckPages(program, arch, floors.stream + floors.input - 1, "a GPU");
    CHECK(absl::IsFailedPrecondition(few));
    CHECK(few.message().find("pages of shared memory") != std::string::npos);
  }
  // What one warp's tiles need is not enough where all warps share one.
  CHECK_FALSE(CheckPages(program, **ArchByName("sm_90a"), 4, "a GPU").ok());
}

}  // namespace
}  // namespace eventide
