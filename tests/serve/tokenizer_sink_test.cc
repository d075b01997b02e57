#include "serve/tokenizer_sink.h"

#include "tests/support/test.h"

namespace eventide {
namespace {

// Token i is the byte i, as in a byte-level vocabulary.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    pieces_.resize(256);
    for (int i = 0; i < 256; ++i)
      pieces_[static_cast<size_t>(i)].bytes = std::string(1, static_cast<char>(i));
  }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, bool) const override {
    std::vector<int32_t> ids;
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::optional<int32_t> TokenId(absl::string_view) const override { return std::nullopt; }
};

std::unique_ptr<TextSink> Sink(const Tokenizer& tokenizer, const std::string& prompt,
                               std::vector<std::string> stops) {
  Request request;
  request.prompt = *tokenizer.Encode(prompt, false);
  request.sampling.stop_strings = std::move(stops);
  auto sink = TokenizerSinks(&tokenizer)(request);
  REQUIRE(sink.ok());
  return *std::move(sink);
}

TEST_CASE("Characters come whole, and a stop string never shows although tokens split it") {
  ByteTokenizer tokenizer;
  auto sink = Sink(tokenizer, "x", {"\nUser:"});
  std::string text;
  for (unsigned char c : std::string("h\xc3\xa9\nUs \nUser:never")) {
    auto delta = sink->Append(c);
    REQUIRE(delta.ok());
    CHECK(delta->text.find('\xc3') == delta->text.find("\xc3\xa9"));
    text += delta->text;
    if (delta->stopped) break;
  }
  CHECK(text == "h\xc3\xa9\nUs ");
}

TEST_CASE("What was held back comes at the end, with a mark for half a character") {
  ByteTokenizer tokenizer;
  auto sink = Sink(tokenizer, "x", {"stop"});
  std::string text;
  for (unsigned char c : std::string("a sto")) text += sink->Append(c)->text;
  CHECK(text == "a ");
  CHECK(sink->Finish() == "sto");
  auto half = Sink(tokenizer, "x", {});
  CHECK(half->Append(0xf0)->text.empty());
  CHECK(half->Finish() == "\xef\xbf\xbd");
}

TEST_CASE("A prompt that ends within a character gives only what completes it") {
  ByteTokenizer tokenizer;
  auto sink = Sink(tokenizer, "pepper \xf0\x9f", {});
  std::string text;
  for (unsigned char c : std::string("\x8c\xb6!")) text += sink->Append(c)->text;
  CHECK(text.find("pepper") == std::string::npos);
  CHECK(text.back() == '!');
}

TEST_CASE("Tokens that the tokenizer does not have and bad stop strings are errors") {
  ByteTokenizer tokenizer;
  CHECK_FALSE(Sink(tokenizer, "x", {})->Append(256).ok());
  Request request;
  request.prompt = {1};
  request.sampling.stop_strings = {"\xff"};
  CHECK_FALSE(TokenizerSinks(&tokenizer)(request).ok());
}

}  // namespace
}  // namespace eventide
