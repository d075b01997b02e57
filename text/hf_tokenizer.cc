#include "text/hf_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/status.h"
#include "text/hf_json.h"

namespace eventide {
namespace {

constexpr size_t kMaxMergeBytes = 4096;

absl::StatusOr<std::vector<std::string>> ReadVocabulary(const Json& model) {
  const Json* vocabulary = JsonFind(model, "vocab");
  if (vocabulary == nullptr || !vocabulary->is_object() || vocabulary->empty()) {
    return absl::InvalidArgumentError("model.vocab is not an object with tokens");
  }
  // Some files leave ids out, but none leaves out most of them.
  const size_t limit = std::min(Bpe::kMaxTokens, vocabulary->size() * 2 + 65536);
  std::vector<std::string> tokens;
  for (const auto& [token, value] : vocabulary->items()) {
    ASSIGN_OR_RETURN(int32_t id, HfTokenId(value, static_cast<int64_t>(limit)));
    const size_t index = static_cast<size_t>(id);
    if (index >= tokens.size()) tokens.resize(index + 1);
    if (!tokens[index].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tokens '", tokens[index], "' and '", token, "' both have id ", id));
    }
    tokens[index] = token;
  }
  return tokens;
}

using TokenPair = std::pair<std::string, std::string>;

// "left right". Tokens with spaces in them make this ambiguous: then the one cut counts that gives
// tokens. (Llama 2's file has three such merges, which Hugging Face reads only as pairs.)
absl::StatusOr<TokenPair> CutMerge(const std::string& merge, const Json& vocabulary) {
  std::vector<TokenPair> found;
  for (size_t space = merge.find(' '); space != std::string::npos;
       space = merge.find(' ', space + 1)) {
    TokenPair pair(merge.substr(0, space), merge.substr(space + 1));
    if (vocabulary.contains(pair.first) && vocabulary.contains(pair.second) &&
        vocabulary.contains(pair.first + pair.second)) {
      found.push_back(std::move(pair));
    }
  }
  if (found.size() == 1) return found[0];
  return absl::InvalidArgumentError(
      absl::StrCat("merge '", merge, "' is not two tokens that make a third"));
}

absl::StatusOr<std::vector<TokenPair>> ReadMerges(const Json& model) {
  const Json* list = JsonFind(model, "merges");
  const Json* vocabulary = JsonFind(model, "vocab");
  if (list == nullptr || !list->is_array() || vocabulary == nullptr) {
    return absl::InvalidArgumentError("model.merges is not a list");
  }
  std::vector<TokenPair> merges;
  merges.reserve(list->size());
  for (const Json& merge : *list) {
    if (const auto* text = merge.get_ptr<const std::string*>()) {
      if (text->size() > kMaxMergeBytes) return absl::InvalidArgumentError("a merge is too long");
      ASSIGN_OR_RETURN(TokenPair pair, CutMerge(*text, *vocabulary));
      merges.push_back(std::move(pair));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", merges.size(), " is not a pair of tokens"));
    }
  }
  return merges;
}

absl::StatusOr<Bpe> ReadModel(const Json& model, bool byte_level) {
  ASSIGN_OR_RETURN(std::string type, JsonString(model, "type", "BPE"));
  if (type != "BPE") {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer model '", type, "' is not supported; only BPE is"));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(std::string affix, JsonString(model, key, ""));
    if (!affix.empty()) {
      return absl::UnimplementedError(absl::StrCat("model.", key, " is not supported"));
    }
  }
  if (const Json* dropout = JsonFind(model, "dropout"); dropout != nullptr && *dropout != 0) {
    return absl::UnimplementedError("model.dropout is not supported");
  }
  BpeOptions options;
  options.byte_level = byte_level;
  ASSIGN_OR_RETURN(options.byte_fallback, JsonBool(model, "byte_fallback", false));
  ASSIGN_OR_RETURN(options.fuse_unk, JsonBool(model, "fuse_unk", false));
  ASSIGN_OR_RETURN(options.ignore_merges, JsonBool(model, "ignore_merges", false));
  ASSIGN_OR_RETURN(std::string unk, JsonString(model, "unk_token", ""));
  ASSIGN_OR_RETURN(std::vector<std::string> tokens, ReadVocabulary(model));
  if (!unk.empty()) {
    const auto it = std::find(tokens.begin(), tokens.end(), unk);
    if (it != tokens.end()) options.unk = static_cast<int32_t>(it - tokens.begin());
  }
  ASSIGN_OR_RETURN(std::vector<TokenPair> merges, ReadMerges(model));
  return Bpe::FromMerges(std::move(tokens), merges, options);
}

absl::Status ReadAddedTokens(const Json& json, BpeTokenizerParts* parts) {
  const Json* list = JsonFind(json, "added_tokens");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return absl::InvalidArgumentError("added_tokens is not a list");
  for (const Json& each : *list) {
    AddedToken token;
    const Json* id = JsonFind(each, "id");
    if (id == nullptr) return absl::InvalidArgumentError("an added token without an id");
    ASSIGN_OR_RETURN(token.id, HfTokenId(*id, Bpe::kMaxTokens));
    ASSIGN_OR_RETURN(token.content, JsonString(each, "content", ""));
    ASSIGN_OR_RETURN(token.special, JsonBool(each, "special", false));
    ASSIGN_OR_RETURN(token.normalized, JsonBool(each, "normalized", !token.special));
    ASSIGN_OR_RETURN(token.single_word, JsonBool(each, "single_word", false));
    ASSIGN_OR_RETURN(token.lstrip, JsonBool(each, "lstrip", false));
    ASSIGN_OR_RETURN(token.rstrip, JsonBool(each, "rstrip", false));
    const int32_t in_vocabulary = parts->bpe.Find(token.content);
    if (in_vocabulary >= 0) token.id = in_vocabulary;  // Hugging Face lets the vocabulary win too
    parts->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ApplyOptions(const HfTokenizerOptions& options, BpeTokenizerParts* parts) {
  auto find = [&](const std::string& token) -> absl::StatusOr<int32_t> {
    for (const AddedToken& added : parts->added) {
      if (added.content == token) return added.id;
    }
    const int32_t id = parts->bpe.Find(token);
    if (id >= 0) return id;
    return absl::InvalidArgumentError(absl::StrCat("'", token, "' is not in the vocabulary"));
  };
  if (!options.bos_token.empty()) {
    ASSIGN_OR_RETURN(parts->bos_id, find(options.bos_token));
  } else if (parts->prefix_ids.size() == 1) {
    parts->bos_id = parts->prefix_ids[0];
  }
  if (!options.eos_token.empty()) {
    ASSIGN_OR_RETURN(int32_t eos, find(options.eos_token));
    parts->eos_ids.push_back(eos);
  }
  for (int32_t id : options.more_eos_ids) {
    if (std::find(parts->eos_ids.begin(), parts->eos_ids.end(), id) == parts->eos_ids.end()) {
      parts->eos_ids.push_back(id);
    }
  }
  if (options.add_bos.has_value()) {
    if (*options.add_bos && !parts->bos_id) {
      return absl::InvalidArgumentError("add_bos_token is set but no BOS token is named");
    }
    parts->prefix_ids.clear();
    if (*options.add_bos) parts->prefix_ids = {*parts->bos_id};
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Read(const Json& json,
                                                const HfTokenizerOptions& options) {
  BpeTokenizerParts parts;
  if (const Json* normalizer = JsonFind(json, "normalizer")) {
    RETURN_IF_ERROR(ReadHfNormalizer(*normalizer, 0, &parts.normalizer));
  }
  if (const Json* pre = JsonFind(json, "pre_tokenizer")) {
    RETURN_IF_ERROR(ReadHfPreTokenizer(*pre, 0, &parts));
  }
  RETURN_IF_ERROR(ReadHfDecoder(JsonFind(json, "decoder"), &parts));
  const Json* model = JsonFind(json, "model");
  if (model == nullptr) return absl::InvalidArgumentError("there is no 'model'");
  ASSIGN_OR_RETURN(parts.bpe, ReadModel(*model, parts.byte_level));
  RETURN_IF_ERROR(ReadAddedTokens(json, &parts));
  if (const Json* post = JsonFind(json, "post_processor")) {
    RETURN_IF_ERROR(ReadHfPostProcessor(*post, 0, &parts));
  }
  RETURN_IF_ERROR(ApplyOptions(options, &parts));
  return MakeBpeTokenizer(std::move(parts));
}

// A token is given as "<s>" or as {"content": "<s>", ...}.
absl::StatusOr<std::string> TokenName(const Json& config, const char* key) {
  const Json* value = JsonFind(config, key);
  if (value != nullptr && value->is_object()) return JsonString(*value, "content", "");
  return JsonString(config, key, "");
}

absl::StatusOr<HfTokenizerOptions> ReadOptions(const std::filesystem::path& folder) {
  HfTokenizerOptions options;
  std::error_code error;
  auto read = [&](const char* name) -> absl::StatusOr<Json> {
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::exists(path, error)) return Json::object();
    ASSIGN_OR_RETURN(std::string text, ReadTokenizerFile(path.string()));
    return ParseJsonObject(text, path.string());
  };
  ASSIGN_OR_RETURN(const Json config, read("tokenizer_config.json"));
  ASSIGN_OR_RETURN(options.bos_token, TokenName(config, "bos_token"));
  ASSIGN_OR_RETURN(options.eos_token, TokenName(config, "eos_token"));
  if (JsonFind(config, "add_bos_token") != nullptr) {
    ASSIGN_OR_RETURN(bool add_bos, JsonBool(config, "add_bos_token", false));
    options.add_bos = add_bos;
  }
  ASSIGN_OR_RETURN(const Json generation, read("generation_config.json"));
  if (const Json* eos = JsonFind(generation, "eos_token_id")) {
    for (const Json& value : eos->is_array() ? *eos : Json::array({*eos})) {
      ASSIGN_OR_RETURN(int32_t id, HfTokenId(value, Bpe::kMaxTokens));
      options.more_eos_ids.push_back(id);
    }
  }
  return options;
}

absl::Status Named(absl::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromHfJson(absl::string_view json,
                                                               absl::string_view name,
                                                               const HfTokenizerOptions& options) {
  ASSIGN_OR_RETURN(const Json parsed, ParseJsonObject(json, name));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Read(parsed, options);
  if (!tokenizer.ok()) return Named(name, tokenizer.status());
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromHfPath(const std::string& path) {
  std::filesystem::path file = path;
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) file /= "tokenizer.json";
  ASSIGN_OR_RETURN(std::string json, ReadTokenizerFile(file.string()));
  absl::StatusOr<HfTokenizerOptions> options = ReadOptions(file.parent_path());
  if (!options.ok()) return Named(path, options.status());
  return TokenizerFromHfJson(json, file.string(), *options);
}

}  // namespace eventide
