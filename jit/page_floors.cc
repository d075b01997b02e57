#include "jit/page_floors.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace eventide {

PageFloors FloorsOf(const Program& program, int port_stream) {
  PageFloors floors;
  floors.stream = std::max(floors.stream, port_stream);
  for (const ProgramKind& kind : program.kinds) {
    floors.stream = std::max(floors.stream, static_cast<int>(kind.op->stream_floor));
    floors.input = std::max(floors.input, static_cast<int>(kind.op->input_floor));
  }
  return floors;
}

absl::Status CheckPages(const Program& program, const GpuArch& arch, int pages, const std::string& gpu) {
  const PageFloors floors = FloorsOf(program, arch.stream_floor);
  if (pages >= floors.stream + floors.input) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: its kernel for %s needs %d pages of shared memory, %d to stream and %d for inputs, but a worker on %s has %d; "
      "run with --device cpu",
      program.name, arch.name, floors.stream + floors.input, floors.stream, floors.input, gpu, pages));
}

}  // namespace eventide
