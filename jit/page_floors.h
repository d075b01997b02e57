// How many pages of shared memory a worker needs (device/pages.h): one rule for the generated kernel, which gives the
// lanes their floors, and for the host, which refuses a GPU with fewer.
#pragma once

#include <string>

#include "core/program.h"
#include "jit/arch.h"

namespace eventide {

// What each lane must always be able to hold: the largest floor of the program's ops, and at least one page.
struct PageFloors {
  int stream = 1, input = 1;
};
// `port_stream`: GpuArch::stream_floor.
PageFloors FloorsOf(const Program& program, int port_stream);

// The error says how many pages there are and how many the program's kernel needs.
absl::Status CheckPages(const Program& program, const GpuArch& arch, int pages, const std::string& gpu);

}  // namespace eventide
