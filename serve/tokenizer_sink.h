// Text of requests through a model's tokenizer: whole characters as they become complete, and
// nothing of a stop string. The prompt is the context of the first characters.
#pragma once

#include "serve/text_sink.h"
#include "text/tokenizer.h"

namespace eventide {

// For EngineOptions::text_sink. `tokenizer` outlives the engine. Special tokens give no text.
TextSinkFactory TokenizerSinks(const Tokenizer* tokenizer);

}  // namespace eventide
