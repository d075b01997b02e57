// What the engine keeps for a request and for a step in flight. Included by serve/engine*.cc only.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "serve/engine.h"

namespace eventide {

struct Engine::Entry {
  Request request;
  OutputCallback callback;
  std::unique_ptr<TextSink> sink;
  OrderKey order;
  uint64_t key = 0;         // of the random numbers
  uint64_t max_length = 0;  // tokens, prompt included
  uint64_t min_length = 0;
  std::vector<TokenId> stop_tokens;  // the request's and, unless ignored, the model's
  std::vector<TokenId> history;      // prompt, then every token handed out

  PrefixMatch match;           // what the prefix cache knows of the history, while it waits
  bool admitted_once = false;  // had a slot before
  uint64_t cached_tokens = 0;  // of the prompt, found in the prefix cache when first admitted

  // With a slot.
  bool has_slot = false;
  uint32_t slot = 0;
  KvTable kv;
  uint64_t kv_tokens = 0;       // of the history: their KV is final, as of the last retired step
  bool kv_lost = false;         // its runner failed: kv_tokens may say too much
  uint64_t prefill_target = 0;  // history's length at admission
  uint64_t prefill_submitted = 0;
  uint64_t unretired_rows = 0;     // rows in flight, at most one a step
  uint64_t unretired_samples = 0;  // of these, rows that sample
  bool leaving = false;            // gets no more rows; Settle follows when its rows have retired
  bool returning = false;          // leaves by preemption: goes back to the queue
  // The device's view as of the last retired step. Its history may be longer than ours: tokens
  // after a stop string are dropped.
  uint64_t device_history = 0;
  uint64_t device_context = 0;

  int64_t arrival_ns = 0;
  int64_t first_token_ns = 0;
  int64_t last_token_ns = 0;

  uint64_t output_tokens() const { return history.size() - request.prompt.size(); }
  // Tokens whose KV others may use. The device may be ahead of the history: of a dropped token
  // behind a stop string there is KV too.
  std::span<const TokenId> FinalTokens() const {
    return std::span(history).first(
        kv_lost ? 0 : static_cast<size_t>(std::min<uint64_t>(kv_tokens, history.size())));
  }
};

struct Engine::Flight {
  uint64_t step = 0;
  bool after_pause = false;  // before it there was a time without requests: the gap is nobody's fault
  std::vector<Row> rows;
  std::vector<Entry*> entries;            // of the rows; alive, since they have unretired rows
  std::vector<BlockTableUpdate> updates;  // used by Submit only
};

}  // namespace eventide
