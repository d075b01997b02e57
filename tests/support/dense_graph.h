// The shape of a dense decoder's step, with toy ops: what Verify, dumps and schedules see of a real
// model.
#pragma once

#include "core/graph.h"
#include "tests/support/toy_ops.h"

namespace eventide {

struct DenseShape {
  int layers = 36, qkv_tiles = 192, o_tiles = 128, up_tiles = 768, down_tiles = 128;
  int kv_heads = 8, vocabulary_tiles = 4748;
  int max_rows = 256, max_tokens = 8192, tile_tokens = 32;
};

// Five hops a layer: qkv, attention, o, gate-up, down; embedding in front, logits and sampling
// behind. The device knows which tokens a row has, so attention is ordered behind all of a layer's
// qkv tiles.
inline Graph DenseGraph(const DenseShape& shape = {}) {
  Graph g("dense");
  const Expr rows = g.AddSymbol("rows", 1, shape.max_rows);
  const Expr tokens = g.AddSymbol("tokens", 1, shape.max_tokens);
  g.Assume(tokens - rows);
  const int layers = shape.layers;
  const Expr tiles = CeilDiv(tokens, shape.tile_tokens);
  const auto state = [&](const char* name, Expr first) {
    return g.AddTensor(name, DType::kI32, {first, tokens}, TensorRole::kScratch);
  };
  const TensorId ids = g.AddTensor("ids", DType::kI32, {tokens}, TensorRole::kInput);
  const TensorId x = state("x", layers + 1), q = state("q", layers), a = state("a", layers);
  const TensorId h = state("h", layers), u = state("u", layers);
  const TensorId logits = g.AddTensor("logits", DType::kI32, {rows}, TensorRole::kScratch);
  const TensorId token = g.AddTensor("token", DType::kI32, {rows}, TensorRole::kOutput);
  const EventId x_done = g.AddEvents("x_done", {layers + 1, tiles});
  const EventId q_done = g.AddEvents("q_done", {layers});
  const EventId a_done = g.AddEvents("a_done", {layers});
  const EventId h_done = g.AddEvents("h_done", {layers, tiles});
  const EventId u_done = g.AddEvents("u_done", {layers, tiles});
  const EventId logits_done = g.AddEvents("logits_done", {1});
  // Token tiles are coordinate 0.
  const IndexRange mine(At(0) * shape.tile_tokens,
                        Min(At(0) * shape.tile_tokens + shape.tile_tokens, tokens));
  const auto part = [&](TensorId tensor, Expr layer) {
    return Operand(tensor, layer).Region({mine});
  };

  g.BeginSection("begin", 1);
  g.Call<Mix1>("embed", {ids, part(x, 0)}, {}, {tiles}).Notify(x_done, {0, At(0)});
  g.BeginSection("layers", layers);
  g.Call<Mix1>("qkv", {part(x, Layer()), part(q, Layer())}, {}, {tiles, shape.qkv_tiles})
      .Wait(x_done, {Layer(), At(0)})
      .Notify(q_done, {Layer()});
  g.Call<Mix1>("attention", {Operand(q, Layer()), Operand(a, Layer())}, {}, {rows, shape.kv_heads})
      .Wait(q_done, {Layer()})
      .Notify(a_done, {Layer()});
  g.Call<Mix2>("o", {part(a, Layer()), part(x, Layer()), part(h, Layer())}, {},
               {tiles, shape.o_tiles})
      .Wait(a_done, {Layer()})
      .Notify(h_done, {Layer(), At(0)});
  g.Call<Mix1>("gate_up", {part(h, Layer()), part(u, Layer())}, {}, {tiles, shape.up_tiles})
      .Wait(h_done, {Layer(), At(0)})
      .Notify(u_done, {Layer(), At(0)});
  g.Call<Mix2>("down", {part(u, Layer()), part(h, Layer()), part(x, Layer() + 1)}, {},
               {tiles, shape.down_tiles})
      .Wait(u_done, {Layer(), At(0)})
      .Notify(x_done, {Layer() + 1, At(0)});
  g.BeginSection("end", 1);
  g.Call<Mix1>("logits", {Operand(x, layers), logits}, {}, {shape.vocabulary_tiles})
      .Wait(x_done, {layers, IndexRange(0, tiles)})
      .Notify(logits_done, {0});
  g.Call<Mix1>("sample", {logits, Operand(token).Region({At(0)})}, {}, {rows})
      .Wait(logits_done, {0});
  return g;
}

}  // namespace eventide
