#include "text/hf_export.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_split.h"
#include "core/status.h"
#include "text/hf_json.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/utf8.h"

namespace eventide {
namespace {

GgufTokenType TypeOf(const BytePairVocab& vocab, size_t id) {
  return vocab.types.empty() ? GgufTokenType::kNormal : static_cast<GgufTokenType>(vocab.types[id]);
}

Json Replace(absl::string_view from, absl::string_view to) {
  return {{"type", "Replace"},
          {"pattern", {{"String", std::string(from)}}},
          {"content", std::string(to)}};
}

absl::StatusOr<Json> Vocabulary(const BytePairVocab& vocab) {
  Json json = Json::object();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const std::string& token = vocab.tokens[id];
    if (token.empty()) continue;  // an id without a token
    if (!IsValidUtf8(token)) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " is not UTF-8"));
    }
    if (!json.emplace(token, id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", id, " is spelled like another: '", token, "'"));
    }
  }
  return json;
}

Json AddedTokens(const BytePairVocab& vocab) {
  Json list = Json::array();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const GgufTokenType type = TypeOf(vocab, id);
    if (type != GgufTokenType::kControl && type != GgufTokenType::kUserDefined) continue;
    list.push_back({{"id", id},
                    {"content", vocab.tokens[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", type == GgufTokenType::kControl}});
  }
  return list;
}

// SentencePiece joins the neighbours whose concatenation has the best score; as a list of merges
// that is: each way to cut a token into two, better tokens first.
Json MergesOfScores(const BytePairVocab& vocab) {
  absl::flat_hash_map<absl::string_view, size_t> ids;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const GgufTokenType type = TypeOf(vocab, id);
    if (type == GgufTokenType::kNormal || type == GgufTokenType::kUserDefined) {
      ids.try_emplace(vocab.tokens[id], id);
    }
  }
  std::vector<std::tuple<float, size_t, size_t, size_t>> merges;  // -score, token, left, right
  for (const auto& [token, id] : ids) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.emplace_back(-vocab.scores[id], id, left->second, right->second);
    }
  }
  std::sort(merges.begin(), merges.end());
  Json json = Json::array();
  for (const auto& [score, id, left, right] : merges) {
    json.push_back({vocab.tokens[left], vocab.tokens[right]});
  }
  return json;
}

absl::Status AddByteLevel(const BytePairVocab& vocab, Json* json) {
  const Json spelling = {{"type", "ByteLevel"},
                         {"add_prefix_space", false},
                         {"trim_offsets", true},
                         {"use_regex", false}};
  Json steps = Json::array();
  ASSIGN_OR_RETURN(const std::vector<std::string> patterns, PreTokenizerPatterns(vocab.pre));
  for (const std::string& pattern : patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(spelling);
  (*json)["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  if (vocab.pre == "qwen2") (*json)["normalizer"] = {{"type", "NFC"}};
  (*json)["decoder"] = spelling;
  Json merges = Json::array();
  for (const std::string& merge : vocab.merges) {
    const size_t space = merge.find(' ', 1);  // TokenizerFromParts has checked the form
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  Json& model = (*json)["model"];
  model["merges"] = std::move(merges);
  model["byte_fallback"] = model["fuse_unk"] = false;
  model["ignore_merges"] = ByteLevelIgnoresMerges(vocab.pre);
  model["unk_token"] = nullptr;
  return absl::OkStatus();
}

void AddSentencePiece(const BytePairVocab& vocab, bool prefix, Json* json) {
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", std::string(kSpaceMark)}});
  normalizers.push_back(Replace(" ", kSpaceMark));
  (*json)["normalizer"] = {{"type", "Sequence"}, {"normalizers", normalizers}};
  Json decoders = {Replace(kSpaceMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  (*json)["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  Json& model = (*json)["model"];
  model["merges"] = MergesOfScores(vocab);
  model["byte_fallback"] = model["fuse_unk"] = true;
  model["ignore_merges"] = false;
  model["unk_token"] = vocab.tokens[static_cast<size_t>(vocab.unk.value_or(0))];
}

// What is put around a text; null for nothing.
Json Template(const BytePairVocab& vocab, const Tokenizer& tokenizer) {
  if (tokenizer.prefix_ids().empty() && tokenizer.suffix_ids().empty()) return nullptr;
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto add = [&](const std::vector<int32_t>& ids, int type) {
    for (const int32_t id : ids) {
      const std::string& name = vocab.tokens[static_cast<size_t>(id)];
      tokens[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
      const Json piece = {{"SpecialToken", {{"id", name}, {"type_id", type}}}};
      if (type == 0) single.push_back(piece);
      pair.push_back(piece);
    }
  };
  for (const int type : {0, 1}) {
    add(tokenizer.prefix_ids(), type);
    const Json text = {{"Sequence", {{"id", type == 0 ? "A" : "B"}, {"type_id", type}}}};
    if (type == 0) single.push_back(text);
    pair.push_back(text);
    add(tokenizer.suffix_ids(), type);
  }
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

}  // namespace

absl::StatusOr<std::vector<TokenizerFile>> HfTokenizerFiles(const BytePairVocab& vocab,
                                                            const std::string& chat_template) {
  // Checks the vocabulary and settles what the file leaves open.
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, TokenizerFromParts(vocab));
  Json json = {{"version", "1.0"},         {"truncation", nullptr},
               {"padding", nullptr},       {"normalizer", nullptr},
               {"pre_tokenizer", nullptr}, {"added_tokens", AddedTokens(vocab)}};
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr}};
  ASSIGN_OR_RETURN(json["model"]["vocab"], Vocabulary(vocab));
  if (vocab.model == "gpt2") {
    RETURN_IF_ERROR(AddByteLevel(vocab, &json));
  } else {
    AddSentencePiece(vocab, tokenizer->decode_style().strip_leading_space, &json);
  }
  json["post_processor"] = Template(vocab, *tokenizer);

  const auto name = [&](std::optional<int32_t> id) {
    return id ? Json(vocab.tokens[static_cast<size_t>(*id)]) : Json();
  };
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"add_bos_token", !tokenizer->prefix_ids().empty()},
                 {"add_eos_token", !tokenizer->suffix_ids().empty()},
                 {"clean_up_tokenization_spaces", false},
                 {"bos_token", name(vocab.bos)},
                 {"eos_token", name(vocab.eos)},
                 {"unk_token", json["model"]["unk_token"]}};
  if (!chat_template.empty()) config["chat_template"] = chat_template;
  Json generation = Json::object();
  if (vocab.bos) generation["bos_token_id"] = *vocab.bos;
  if (!tokenizer->eos_ids().empty()) generation["eos_token_id"] = tokenizer->eos_ids();
  return std::vector<TokenizerFile>{{"tokenizer.json", json.dump(1) + "\n"},
                                    {"tokenizer_config.json", config.dump(2) + "\n"},
                                    {"generation_config.json", generation.dump(2) + "\n"}};
}

}  // namespace eventide
