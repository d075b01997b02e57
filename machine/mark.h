// Where in a file of a kernel its PTX begins, behind the cubin: what nvrtc.cc writes and driver.cc looks for.
#pragma once

namespace eventide::machine {

inline constexpr char kPtxMark[] = "\n// PTX for the machine\n";

}  // namespace eventide::machine
