// Checked access to JSON for the tokenizer readers (nlohmann's own accessors throw), and the parts
// of a tokenizer.json that become normalisers, pre-tokenizers and decoders.
#pragma once

#include "absl/status/statusor.h"
#include "formats/json.h"
#include "text/bpe_tokenizer.h"

namespace eventide {

using Json = nlohmann::json;

// The text of one of the files around a tokenizer.
absl::StatusOr<std::string> ReadTokenizerFile(const std::string& path);

// An integer within [0, limit).
absl::StatusOr<int32_t> HfTokenId(const Json& value, int64_t limit);

absl::Status ReadHfNormalizer(const Json& json, int depth, Normalizer* normalizer);
// Sets parts->byte_level when a ByteLevel step ends the list.
absl::Status ReadHfPreTokenizer(const Json& json, int depth, BpeTokenizerParts* parts);
// Sets decode_style; needs byte_level.
absl::Status ReadHfDecoder(const Json* json, BpeTokenizerParts* parts);
// Sets prefix_ids and suffix_ids.
absl::Status ReadHfPostProcessor(const Json& json, int depth, BpeTokenizerParts* parts);

}  // namespace eventide
