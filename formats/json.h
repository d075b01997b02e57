// JSON read strictly: what the standard leaves open (a key given twice) is an error here, and
// nothing throws. `what` names the text in errors.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace eventide {

// The value, which must be an object. Refuses invalid UTF-8, duplicate keys at any depth and
// nesting deeper than 64.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, absl::string_view what);

// object[key] as an integer in [low, high]; `fallback` where the key is absent or null.
absl::StatusOr<int64_t> JsonInteger(const nlohmann::json& object, const char* key, int64_t fallback,
                                    int64_t low, int64_t high);
// As above, but the key must be there.
absl::StatusOr<int64_t> JsonInteger(const nlohmann::json& object, const char* key, int64_t low,
                                    int64_t high);
// A finite number.
absl::StatusOr<double> JsonNumber(const nlohmann::json& object, const char* key, double fallback);
absl::StatusOr<bool> JsonBool(const nlohmann::json& object, const char* key, bool fallback);
absl::StatusOr<std::string> JsonString(const nlohmann::json& object, const char* key,
                                       absl::string_view fallback);

// object[key], or null where it is absent or null.
const nlohmann::json* JsonFind(const nlohmann::json& object, const char* key);

// The start of a value's text, for errors.
std::string JsonExcerpt(const nlohmann::json& value);

}  // namespace eventide
