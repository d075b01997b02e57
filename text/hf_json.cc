#include "text/hf_json.h"

#include <filesystem>
#include <fstream>

#include "core/status.h"

namespace eventide {
namespace {

constexpr int kMaxDepth = 8;
constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;

absl::Status Unsupported(absl::string_view part, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(part, " '", what, "' is not supported"));
}

// The elements of a Sequence, whose member is `key`.
absl::StatusOr<const Json*> Elements(const Json& json, const char* key, int depth) {
  const Json* list = JsonFind(json, key);
  if (list == nullptr || !list->is_array() || depth >= kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("a Sequence without a list '", key, "', or nested too deeply"));
  }
  return list;
}

absl::Status ReadReplace(const Json& json, std::string* from, std::string* to) {
  const Json* pattern = JsonFind(json, "pattern");
  if (pattern == nullptr) return absl::InvalidArgumentError("Replace without a pattern");
  ASSIGN_OR_RETURN(*from, JsonString(*pattern, "String", ""));
  ASSIGN_OR_RETURN(*to, JsonString(json, "content", ""));
  if (from->empty()) return Unsupported("Replace", JsonExcerpt(*pattern));
  return absl::OkStatus();
}

absl::StatusOr<Regex> ReadPattern(const Json& json) {
  const Json* pattern = JsonFind(json, "pattern");
  if (pattern == nullptr) return absl::InvalidArgumentError("Split without a pattern");
  ASSIGN_OR_RETURN(std::string regex, JsonString(*pattern, "Regex", ""));
  if (!regex.empty()) return Regex::Compile(regex);
  ASSIGN_OR_RETURN(std::string literal, JsonString(*pattern, "String", ""));
  std::string escaped;
  for (char c : literal) {
    if (absl::string_view("\\.^$*+?{}[]()|").find(c) != absl::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return Regex::Compile(escaped);
}

absl::Status ReadSplit(const Json& json, PreTokenizer* pre) {
  ASSIGN_OR_RETURN(Regex regex, ReadPattern(json));
  ASSIGN_OR_RETURN(std::string behavior, JsonString(json, "behavior", ""));
  ASSIGN_OR_RETURN(bool invert, JsonBool(json, "invert", false));
  PreTokenizer::Keep keep = PreTokenizer::Keep::kIsolated;
  if (behavior == "Removed") {
    keep = invert ? PreTokenizer::Keep::kMatches : PreTokenizer::Keep::kRemoved;
  } else if (behavior != "Isolated") {
    return Unsupported("Split behavior", behavior);
  }
  pre->AddSplit(std::move(regex), keep);
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const Json& json, BpeTokenizerParts* parts) {
  ASSIGN_OR_RETURN(bool prefix, JsonBool(json, "add_prefix_space", true));
  ASSIGN_OR_RETURN(bool use_regex, JsonBool(json, "use_regex", true));
  if (prefix) parts->pre_tokenizer.AddPrefixSpace();
  if (use_regex) {
    ASSIGN_OR_RETURN(Regex regex, Regex::Compile(kGpt2Pattern));
    parts->pre_tokenizer.AddSplit(std::move(regex), PreTokenizer::Keep::kIsolated);
  }
  parts->byte_level = true;
  return absl::OkStatus();
}

absl::Status ReadMetaspace(const Json& json, PreTokenizer* pre) {
  ASSIGN_OR_RETURN(std::string mark, JsonString(json, "replacement", kSpaceMark));
  ASSIGN_OR_RETURN(std::string scheme, JsonString(json, "prepend_scheme", ""));
  ASSIGN_OR_RETURN(bool legacy_prefix, JsonBool(json, "add_prefix_space", true));
  ASSIGN_OR_RETURN(bool split, JsonBool(json, "split", true));
  PreTokenizer::Prefix prefix = PreTokenizer::Prefix::kAlways;
  if (scheme == "first") {
    prefix = PreTokenizer::Prefix::kFirst;
  } else if (scheme == "never" || (scheme.empty() && !legacy_prefix)) {
    prefix = PreTokenizer::Prefix::kNever;
  } else if (scheme != "always" && !scheme.empty()) {
    return Unsupported("Metaspace prepend_scheme", scheme);
  }
  if (mark.empty()) return absl::InvalidArgumentError("Metaspace without a replacement");
  pre->AddMetaspace(mark, prefix, split);
  return absl::OkStatus();
}

absl::Status AppendTemplateIds(const Json& piece, const Json& post, std::vector<int32_t>* ids) {
  ASSIGN_OR_RETURN(std::string name, JsonString(piece, "id", ""));
  const Json* tokens = JsonFind(post, "special_tokens");
  const Json* token = tokens == nullptr ? nullptr : JsonFind(*tokens, name.c_str());
  const Json* list = token == nullptr ? nullptr : JsonFind(*token, "ids");
  if (list == nullptr || !list->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the template uses '", name, "', which its special_tokens do not define"));
  }
  for (const Json& value : *list) {
    ASSIGN_OR_RETURN(int32_t id, HfTokenId(value, Bpe::kMaxTokens));
    ids->push_back(id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (bytes > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is larger than ", kMaxFileBytes >> 20,
                                                   " MiB, too large for a tokenizer"));
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) {
    return absl::NotFoundError(absl::StrCat(path, " could not be read"));
  }
  return text;
}

absl::StatusOr<int32_t> HfTokenId(const Json& value, int64_t limit) {
  const auto* number = value.get_ptr<const int64_t*>();
  const auto* positive = value.get_ptr<const uint64_t*>();
  if (positive != nullptr && *positive < static_cast<uint64_t>(limit)) {
    return static_cast<int32_t>(*positive);
  }
  if (positive == nullptr && number != nullptr && *number >= 0 && *number < limit) {
    return static_cast<int32_t>(*number);
  }
  return absl::InvalidArgumentError("a token id is not an integer from 0 to the allowed maximum");
}

absl::Status ReadHfNormalizer(const Json& json, int depth, Normalizer* normalizer) {
  ASSIGN_OR_RETURN(std::string type, JsonString(json, "type", ""));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, Elements(json, "normalizers", depth));
    for (const Json& each : *list) RETURN_IF_ERROR(ReadHfNormalizer(each, depth + 1, normalizer));
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string text, JsonString(json, "prepend", ""));
    normalizer->AddPrepend(std::move(text));
    return absl::OkStatus();
  }
  if (type == "Replace") {
    std::string from, to;
    RETURN_IF_ERROR(ReadReplace(json, &from, &to));
    normalizer->AddReplace(std::move(from), std::move(to));
    return absl::OkStatus();
  }
  static constexpr std::pair<const char*, UnicodeForm> kForms[] = {{"NFC", UnicodeForm::kNfc},
                                                                   {"NFD", UnicodeForm::kNfd},
                                                                   {"NFKC", UnicodeForm::kNfkc},
                                                                   {"NFKD", UnicodeForm::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) return normalizer->AddForm(form), absl::OkStatus();
  }
  return Unsupported("normalizer", type);
}

absl::Status ReadHfPreTokenizer(const Json& json, int depth, BpeTokenizerParts* parts) {
  ASSIGN_OR_RETURN(std::string type, JsonString(json, "type", ""));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, Elements(json, "pretokenizers", depth));
    for (const Json& each : *list) RETURN_IF_ERROR(ReadHfPreTokenizer(each, depth + 1, parts));
    return absl::OkStatus();
  }
  // Later steps would see the spelling of bytes instead of text.
  if (parts->byte_level) return Unsupported("pre-tokenizer after ByteLevel", type);
  if (type == "ByteLevel") return ReadByteLevel(json, parts);
  if (type == "Split") return ReadSplit(json, &parts->pre_tokenizer);
  if (type == "Metaspace") return ReadMetaspace(json, &parts->pre_tokenizer);
  if (type == "Digits") {
    ASSIGN_OR_RETURN(bool individual, JsonBool(json, "individual_digits", false));
    parts->pre_tokenizer.AddDigits(individual);
    return absl::OkStatus();
  }
  return Unsupported("pre-tokenizer", type);
}

absl::Status ReadHfDecoder(const Json* json, BpeTokenizerParts* parts) {
  if (json == nullptr) {
    if (parts->byte_level) return absl::OkStatus();
    return absl::InvalidArgumentError("the file names no decoder");
  }
  ASSIGN_OR_RETURN(std::string type, JsonString(*json, "type", ""));
  if (type == "ByteLevel" && parts->byte_level) return absl::OkStatus();
  if (type != "Sequence") return Unsupported("decoder", type);
  ASSIGN_OR_RETURN(const Json* list, Elements(*json, "decoders", 0));
  bool marks = false, fused = false;
  for (const Json& step : *list) {
    ASSIGN_OR_RETURN(std::string name, JsonString(step, "type", ""));
    if (name == "ByteLevel" && parts->byte_level && list->size() == 1) return absl::OkStatus();
    if (name == "Replace" && !fused) {
      std::string from, to;
      RETURN_IF_ERROR(ReadReplace(step, &from, &to));
      if (from != kSpaceMark || to != " ") return Unsupported("decoder Replace", from);
      marks = true;
    } else if (name == "ByteFallback" && !fused) {
      parts->decode_style.byte_fallback = true;
    } else if (name == "Fuse") {
      fused = true;
    } else if (name == "Strip" && fused) {
      const Json expected = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
      if (step != expected) return Unsupported("decoder", JsonExcerpt(step));
      parts->decode_style.strip_leading_space = true;
    } else {
      return Unsupported("decoder step", name);
    }
  }
  if (!marks || parts->byte_level) return Unsupported("decoder", JsonExcerpt(*json));
  return absl::OkStatus();
}

absl::Status ReadHfPostProcessor(const Json& json, int depth, BpeTokenizerParts* parts) {
  ASSIGN_OR_RETURN(std::string type, JsonString(json, "type", ""));
  if (type == "ByteLevel") return absl::OkStatus();  // changes offsets only
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const Json* list, Elements(json, "processors", depth));
    for (const Json& each : *list) RETURN_IF_ERROR(ReadHfPostProcessor(each, depth + 1, parts));
    return absl::OkStatus();
  }
  if (type != "TemplateProcessing") return Unsupported("post-processor", type);
  const Json* single = JsonFind(json, "single");
  if (single == nullptr || !single->is_array()) {
    return absl::InvalidArgumentError("TemplateProcessing without a list 'single'");
  }
  std::vector<int32_t>* ids = &parts->prefix_ids;
  for (const Json& piece : *single) {
    if (const Json* special = JsonFind(piece, "SpecialToken")) {
      RETURN_IF_ERROR(AppendTemplateIds(*special, json, ids));
    } else if (JsonFind(piece, "Sequence") != nullptr && ids == &parts->prefix_ids) {
      ids = &parts->suffix_ids;
    } else {
      return Unsupported("template", JsonExcerpt(*single));
    }
  }
  return absl::OkStatus();
}

}  // namespace eventide
