// What this binary is.
#pragma once

#include <string>

namespace eventide {

// "0.1.0", and in brackets what `git describe` said when the build was configured, where it was
// configured in a checkout.
std::string Version();

}  // namespace eventide
