// The headers a generated kernel includes: device/, ops/ and schedulers/*_device.h, embedded in the
// binary (cmake/embed.cmake) or read live from a source folder while kernels are being edited.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace eventide {

struct EmbeddedSource {
  const char* name;  // "device/base.h"
  const char* text;
};
extern const EmbeddedSource kEmbeddedSources[];  // ends with a null name

struct HeaderText {
  std::string name, text;
};

// Every header `source` includes, directly or not, sorted by name. A header is looked for in
// `extra` (ops that are not part of Eventide), then in the checkout that $EVENTIDE_SOURCE_DIR names
// or, when that is not set, in the binary itself. An include that nobody has is an error that names
// the includer.
absl::StatusOr<std::vector<HeaderText>> CollectHeaders(const std::string& source,
                                                       const std::vector<HeaderText>& extra = {});

}  // namespace eventide
