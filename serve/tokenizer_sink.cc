#include "serve/tokenizer_sink.h"

#include "core/status.h"
#include "text/stop_matcher.h"
#include "text/stream_decoder.h"

namespace eventide {
namespace {

class TokenizerSink final : public TextSink {
 public:
  TokenizerSink(StreamDecoder decoder, StopMatcher matcher)
      : decoder_(std::move(decoder)), matcher_(std::move(matcher)) {}

  absl::StatusOr<TextDelta> Append(TokenId token) override {
    ASSIGN_OR_RETURN(std::string text, decoder_.Push(token));
    StopMatcher::Result result = matcher_.Push(text);
    return TextDelta{std::move(result.text), result.stop >= 0};
  }

  std::string Finish() override {
    StopMatcher::Result last = matcher_.Push(decoder_.Finish());
    return last.text + matcher_.Finish();
  }

 private:
  StreamDecoder decoder_;
  StopMatcher matcher_;
};

}  // namespace

TextSinkFactory TokenizerSinks(const Tokenizer* tokenizer) {
  return [tokenizer](const Request& request) -> absl::StatusOr<std::unique_ptr<TextSink>> {
    ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::Create(request.sampling.stop_strings));
    StreamDecoder decoder(tokenizer);
    RETURN_IF_ERROR(decoder.Prime({request.prompt.data(), request.prompt.size()}));
    return std::make_unique<TokenizerSink>(std::move(decoder), std::move(matcher));
  };
}

}  // namespace eventide
