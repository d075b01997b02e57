#include "formats/json.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "core/status.h"

namespace eventide {

using nlohmann::json;

absl::StatusOr<json> ParseJsonObject(absl::string_view text, absl::string_view what) {
  constexpr int kMaxDepth = 64;
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::string duplicate;
  bool too_deep = false;
  auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth) too_deep = true;
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && duplicate.empty()) duplicate = key;
    }
    return !too_deep;  // false drops the value, so that depth costs no memory
  };
  json value = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (too_deep) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": JSON nested deeper than ", kMaxDepth, " levels"));
  }
  if (value.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": not valid JSON"));
  }
  if (!duplicate.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": the key '", duplicate, "' appears twice in one object"));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": not a JSON object"));
  }
  return value;
}

const json* JsonFind(const json& object, const char* key) {
  auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string JsonExcerpt(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

namespace {

absl::Status WrongType(const char* key, const json& value, const std::string& wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is ", JsonExcerpt(value), "; expected ", wanted));
}

}  // namespace

absl::StatusOr<int64_t> JsonInteger(const json& object, const char* key, int64_t low,
                                    int64_t high) {
  const json* value = JsonFind(object, key);
  if (value == nullptr) return absl::InvalidArgumentError(absl::StrCat(key, " is missing"));
  const std::string wanted = absl::StrCat("an integer from ", low, " to ", high);
  if (!value->is_number_integer()) return WrongType(key, *value, wanted);
  if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(INT64_MAX)) {
    return WrongType(key, *value, wanted);
  }
  const int64_t number = value->get<int64_t>();
  if (number < low || number > high) return WrongType(key, *value, wanted);
  return number;
}

absl::StatusOr<int64_t> JsonInteger(const json& object, const char* key, int64_t fallback,
                                    int64_t low, int64_t high) {
  if (JsonFind(object, key) == nullptr) return fallback;
  return JsonInteger(object, key, low, high);
}

absl::StatusOr<double> JsonNumber(const json& object, const char* key, double fallback) {
  const json* value = JsonFind(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    return WrongType(key, *value, "a finite number");
  }
  return value->get<double>();
}

absl::StatusOr<bool> JsonBool(const json& object, const char* key, bool fallback) {
  const json* value = JsonFind(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return WrongType(key, *value, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonString(const json& object, const char* key,
                                       absl::string_view fallback) {
  const json* value = JsonFind(object, key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) return WrongType(key, *value, "a string");
  return value->get<std::string>();
}

}  // namespace eventide
