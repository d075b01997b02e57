// Text that arrives token by token: whole characters only, and nothing of a stop string.
#include "tests/support/tiny_tokenizer.h"
#include "tests/support/tokenizer_corpus.h"
#include "text/stop_matcher.h"
#include "text/stream_decoder.h"
#include "text/utf8.h"

namespace eventide {
namespace {

using Ids = std::vector<int32_t>;

std::vector<std::string> Deltas(StreamDecoder* decoder, const Ids& ids) {
  std::vector<std::string> deltas;
  for (int32_t id : ids) {
    auto text = decoder->Push(id);
    REQUIRE(text.ok());
    deltas.push_back(*text);
  }
  deltas.push_back(decoder->Finish());
  return deltas;
}

TEST_CASE("a character comes out once its last byte is in") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  StreamDecoder decoder(tokenizer.get());
  REQUIRE(Deltas(&decoder, {'a', 0xF0, 0x9F, 0x98, 0x80, 'b'}) ==
          std::vector<std::string>{"a", "", "", "", "\xF0\x9F\x98\x80", "b", ""});
}

TEST_CASE("bytes that can become no character are replaced as soon as that is known") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  const std::string r = kReplacementCharacter;
  StreamDecoder decoder(tokenizer.get());
  REQUIRE(Deltas(&decoder, {0xFF, 0xE2, 0x82, 'x', 0xE2, 0x82}) ==
          std::vector<std::string>{r, "", "", r + "x", "", "", r});
}

TEST_CASE("a prompt that ends within a character is completed without being repeated") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  StreamDecoder decoder(tokenizer.get());
  REQUIRE(decoder.Prime(Ids{259, ' ', 0xE2, 0x82}).ok());
  REQUIRE(Deltas(&decoder, {0xAC, '!'}) == std::vector<std::string>{"\xE2\x82\xAC", "!", ""});
}

TEST_CASE("SentencePiece's leading space is dropped at the start and kept in a continuation") {
  const auto tokenizer = MakeTokenizer(TinySentencePieceVocab());
  StreamDecoder fresh(tokenizer.get()), continued(tokenizer.get());
  REQUIRE(Deltas(&fresh, {1, 263, 263}) == std::vector<std::string>{"", "ab", " ab", ""});
  REQUIRE(continued.Prime(Ids{1, 263}).ok());
  REQUIRE(Deltas(&continued, {263}) == std::vector<std::string>{" ab", ""});
}

TEST_CASE("fallback bytes followed by a word are replaced, then the word comes") {
  const auto tokenizer = MakeTokenizer(TinySentencePieceVocab());
  StreamDecoder decoder(tokenizer.get());
  const std::string r = kReplacementCharacter;
  REQUIRE(Deltas(&decoder, {260, 3 + 0xF0, 3 + 0x9F, 263}) ==
          std::vector<std::string>{"a", "", "", r + r + " ab", ""});
}

TEST_CASE("special tokens do not come out and do not break a character") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  StreamDecoder decoder(tokenizer.get()), all(tokenizer.get(), /*skip_special=*/false);
  REQUIRE(Deltas(&decoder, {261, 0xC3, 262, 0xA9}) ==
          std::vector<std::string>{"", "", "", "\xC3\xA9", ""});
  REQUIRE(Deltas(&all, {261, 'x'}) == std::vector<std::string>{"<|bos|>", "x", ""});
}

TEST_CASE("an id outside the vocabulary leaves the stream as it was") {
  const auto tokenizer = MakeTokenizer(TinyByteLevelVocab());
  StreamDecoder decoder(tokenizer.get());
  REQUIRE(*decoder.Push(0xC3) == "");
  REQUIRE_FALSE(decoder.Push(100000).ok());
  REQUIRE_FALSE(decoder.Push(-1).ok());
  REQUIRE(*decoder.Push(0xA9) == "\xC3\xA9");
}

StopMatcher Matcher(const std::vector<std::string>& stops) {
  auto matcher = StopMatcher::Create(stops);
  REQUIRE(matcher.ok());
  return *std::move(matcher);
}

TEST_CASE("a stop string across parts is found and nothing of it comes out") {
  StopMatcher matcher = Matcher({"\nUser:", "beta gamma"});
  REQUIRE(matcher.Push("alpha be").text == "alpha ");
  REQUIRE(matcher.Push("ta").text == "");
  REQUIRE(matcher.Push(" delta\nUs").text == "beta delta");
  const StopMatcher::Result last = matcher.Push("er: more");
  REQUIRE(last.text == "");
  REQUIRE(last.stop == 0);
  REQUIRE(matcher.stopped());
  REQUIRE(matcher.Push("later").text == "");
  REQUIRE(matcher.Finish() == "");
}

TEST_CASE("what only began like a stop string comes out at the end") {
  StopMatcher matcher = Matcher({"STOP"});
  REQUIRE(matcher.Push("a STO").text == "a ");
  REQUIRE(matcher.Finish() == "STO");
}

TEST_CASE("without stop strings text passes through at once") {
  StopMatcher matcher;
  REQUIRE(matcher.Push("anything").text == "anything");
}

TEST_CASE("stop strings that could never or always match are refused") {
  REQUIRE_FALSE(StopMatcher::Create({"a", ""}).ok());
  REQUIRE_FALSE(StopMatcher::Create({"\xFF"}).ok());
  REQUIRE_FALSE(StopMatcher::Create({std::string(5000, 'x')}).ok());
  REQUIRE_FALSE(StopMatcher::Create(std::vector<std::string>(65, "x")).ok());
}

// The definition: the shortest prefix of `text` that ends in a stop string, longest stop first.
std::string CutAtStop(const std::string& text, const std::vector<std::string>& stops, int* stop) {
  *stop = -1;
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& s = stops[i];
      if (s.size() > end || text.compare(end - s.size(), s.size(), s) != 0) continue;
      if (*stop < 0 || s.size() > stops[static_cast<size_t>(*stop)].size()) {
        *stop = static_cast<int>(i);
      }
    }
    if (*stop >= 0) return text.substr(0, end - stops[static_cast<size_t>(*stop)].size());
  }
  return text;
}

TEST_CASE(
    "stop strings cut the same wherever the text is divided, and hold back no more than needed") {
  uint64_t state = 7;
  auto random_text = [&](uint64_t most) {
    std::string text;
    for (uint64_t n = 1 + NextRandom(&state) % most; n > 0; --n) {
      text += "ab\n"[NextRandom(&state) % 3];
    }
    return text;
  };
  int found = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (uint64_t n = 1 + NextRandom(&state) % 3; n > 0; --n) stops.push_back(random_text(5));
    const std::string text = random_text(24);
    int expected_stop = -1;
    const std::string expected = CutAtStop(text, stops, &expected_stop);
    StopMatcher matcher = Matcher(stops);
    std::string out;
    int stop = -1;
    for (size_t begin = 0; begin < text.size() && stop < 0;) {
      const size_t length = 1 + NextRandom(&state) % 5;
      const StopMatcher::Result result = matcher.Push(text.substr(begin, length));
      out += result.text;
      stop = result.stop;
      begin = std::min(begin + length, text.size());
      if (stop >= 0) break;
      // What is held back is a beginning of some stop string.
      const std::string held = text.substr(0, begin).substr(out.size());
      REQUIRE((held.empty() || std::any_of(stops.begin(), stops.end(), [&](const std::string& s) {
                 return s.compare(0, held.size(), held) == 0;
               })));
    }
    if (stop < 0) out += matcher.Finish();
    INFO("text " << text);
    REQUIRE(out == expected);
    REQUIRE((stop < 0) == (expected_stop < 0));
    if (stop >= 0)
      REQUIRE(stops[static_cast<size_t>(stop)] == stops[static_cast<size_t>(expected_stop)]);
    found += stop >= 0;
  }
  REQUIRE(found > 5000);
  REQUIRE(found < 19500);
}

}  // namespace
}  // namespace eventide
