#include "tools/version.h"

#include "generated/version.h"

namespace eventide {

std::string Version() {
  const std::string checkout = kCheckout;
  return checkout.empty() ? kVersion : std::string(kVersion) + " (" + checkout + ")";
}

}  // namespace eventide
