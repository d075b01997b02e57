// The hop between qkv and attention that only steps with rows of many tokens have (ops/append_kv.h).
#include "models/decoder_parts.h"
#include "ops/append_kv.h"
#include "ops/plan.h"

namespace eventide {

namespace {

int LeastTokens(const Decoder& decoder) {
  return decoder.limits.long_tokens > 0 ? decoder.limits.long_tokens : Plan::kLongTokens;
}
// More than 0 where some row may have so many tokens: then there are so many more tokens than rows.
Expr Beyond(const Decoder& decoder, const Expr& rows, const Expr& tokens) {
  return Max(tokens - rows - (LeastTokens(decoder) - 2), 0);
}

}  // namespace

Expr AppendsOf(const Decoder& decoder, const Expr& rows, const Expr& tokens) {
  if (decoder.HasExits()) return Expr(0);
  // The factor makes all of the tiles of the first token beyond.
  const int all = CeilDiv(Plan::kMaxRows + LeastTokens(decoder), AppendKv::kTokens);
  return Min(CeilDiv(tokens, AppendKv::kTokens), Beyond(decoder, rows, tokens) * all);
}
Expr HasAppends(const Decoder& decoder, const Expr& rows, const Expr& tokens) {
  return Min(Beyond(decoder, rows, tokens), 1);
}

EventId AddAppends(const AppendsPlace& place) {
  Graph& g = *place.graph;
  const Decoder& d = *place.decoder;
  const DecoderTensors& t = *place.tensors;
  const ModelConfig& c = d.config;
  const DecoderShape shape(c);
  const EventId appended = g.AddEvents("kv_appended", {c.layers, c.kv_heads});
  const Expr column = At(1) * shape.qkv_stride, first = At(0) * AppendKv::kTokens;
  const IndexRange tokens(first, Min(first + AppendKv::kTokens, place.tokens));
  g.Call<AppendKv>("append_kv",
                   {t.row_start, Operand(t.token_row).Region({tokens}),
                    Operand(t.qkv).Region({tokens, IndexRange(column, column + shape.qkv_stride)}),
                    Operand(t.k_norm, Layer()), Operand(t.rope, 0), Operand(t.cache, Layer())},
                   {c.head_dim, c.kv_heads, shape.group, shape.qkv_stride, d.limits.block_size, c.rms_eps, c.qk_norm},
                   {place.appends, c.kv_heads}, place.variant)
      .Wait(place.ready, {Layer(), At(1)})
      .Notify(appended, {Layer(), At(1)});
  return appended;
}

}  // namespace eventide
