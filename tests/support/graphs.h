// Toy graphs of what real models do with device-resident values, in the language of core/graph.h
// and with the ops of toy_ops.h. Each is whole: inputs are the tensors of role kInput (any i32),
// results those of role kOutput. ToySequential (tests/support/sequential.h) gives the values they
// must have.
#pragma once

#include "core/graph.h"
#include "tests/support/toy_ops.h"

namespace eventide {

inline constexpr int kToyExperts = 5;
inline constexpr int kToyTopK = 2;
inline constexpr int kToyTile = 3;
inline constexpr int kToyMaxRows = 24;

// Tensors of a dispatch into tiles (ToyDispatch), all published by one event.
struct ToyDispatchTensors {
  TensorId counts, tile_ptr, tile_group, total, order, begin, where;
};

inline ToyDispatchTensors AddDispatch(Graph& g, const std::string& name, int64_t groups,
                                      int64_t max_tiles, int64_t max_items, EventId published) {
  ToyDispatchTensors d;
  d.counts = g.AddPublished(name + "_counts", {groups}, 0, max_tiles, published, {0});
  d.tile_ptr = g.AddPublished(name + "_tile_ptr", {groups + 1}, 0, max_tiles, published, {0});
  d.tile_group = g.AddPublished(name + "_tile_group", {max_tiles}, 0, groups - 1, published, {0});
  d.total = g.AddPublished(name + "_total", {1}, 0, max_tiles, published, {0});
  d.order = g.AddTensor(name + "_order", DType::kI32, {max_items}, TensorRole::kScratch);
  d.begin = g.AddPublished(name + "_begin", {max_tiles + 1}, 0, max_items, published, {0});
  d.where = g.AddPublished(name + "_where", {max_items}, 0, max_items - 1, published, {0});
  return d;
}

// Mixture of experts: route each token to two experts, dispatch, run the experts' tiles (a number
// that only the device knows; some experts get none), combine per token (gather edges), and sum up
// per expert (range edges over its tiles).
inline Graph ToyMoeGraph() {
  Graph g("toy_moe");
  const int max_items = kToyMaxRows * kToyTopK, max_tiles = kToyExperts + max_items / kToyTile;
  const Expr tokens = g.AddSymbol("tokens", 0, kToyMaxRows);
  const DimRef tokens_dim = g.Dim(tokens), items_dim = g.Dim(tokens * kToyTopK);
  const TensorId in = g.AddTensor("in", DType::kI32, {tokens}, TensorRole::kInput);
  const TensorId x = g.AddTensor("x", DType::kI32, {tokens}, TensorRole::kScratch);
  const TensorId y = g.AddTensor("y", DType::kI32, {tokens * kToyTopK}, TensorRole::kScratch);
  const TensorId out = g.AddTensor("out", DType::kI32, {tokens}, TensorRole::kOutput);
  const TensorId sums = g.AddTensor("sums", DType::kI32, {kToyExperts}, TensorRole::kOutput);

  const EventId x_done = g.AddEvents("x_done", {CeilDiv(tokens, 4)});
  const EventId routed = g.AddEvents("routed", {tokens});
  const EventId planned = g.AddEvents("planned", {1});
  const EventId tile_done = g.AddEvents("tile_done", {max_tiles});
  const EventId expert_done = g.AddEvents("expert_done", {kToyExperts});
  const TensorId experts =
      g.AddPublished("experts", {tokens, kToyTopK}, 0, kToyExperts - 1, routed, {At(0)});
  const ToyDispatchTensors d = AddDispatch(g, "tiles", kToyExperts, max_tiles, max_items, planned);
  g.SetCounts(expert_done, d.counts);

  g.Call<Mix1>("embed", {Operand(in).Region({At(0)}), Operand(x).Region({At(0)})},
               {1, {{0, 1, tokens_dim}, {0, 1, tokens_dim}}}, {tokens})
      .Notify(x_done, {At(0) / 4});
  g.Call<ToyChoose>("route", {Operand(x).Region({At(0)}), Operand(experts).Region({At(0)})},
                    {2, kToyTopK, 0, kToyExperts - 1}, {tokens})
      .Wait(x_done, {At(0) / 4})
      .Notify(routed, {At(0)});
  g.Call<ToyDispatch>(
       "dispatch",
       {experts, d.counts, d.tile_ptr, d.tile_group, d.total, d.order, d.begin, d.where},
       {items_dim, {-1, kToyExperts}, kToyTile, 0}, {1})
      .Wait(routed, {IndexRange(0, tokens)})
      .Notify(planned, {0});
  // Which tokens a tile reads only the device knows: it is ordered behind all of them by `planned`.
  const IndexRange places(g.Load(d.begin, {At(0)}),
                          Min(g.Load(d.begin, {At(0)}) + kToyTile, g.Load(d.begin, {At(0) + 1})));
  g.Call<ToyTile>("experts", {x, d.tile_group, d.order, d.begin, Operand(y).Region({places})},
                  {3, kToyTopK, kToyTile}, {g.Load(d.total, {0})})
      .Wait(planned, {0})
      .Notify(tile_done, {At(0)})
      .Notify(expert_done, {g.Load(d.tile_group, {At(0)})});
  auto combine = g.Call<ToyCombine>("combine",
                                    {Operand(y).Region({g.Load(d.where, {At(0) * kToyTopK})}),
                                     Operand(y).Region({g.Load(d.where, {At(0) * kToyTopK + 1})}),
                                     d.where, Operand(out).Region({At(0)})},
                                    {4}, {tokens});
  for (int k = 0; k < kToyTopK; ++k) combine.Wait(expert_done, {g.Load(experts, {At(0), k})});
  const Expr first_tile = g.Load(d.tile_ptr, {At(0)}), end_tile = g.Load(d.tile_ptr, {At(0) + 1});
  const IndexRange expert_places(g.Load(d.begin, {first_tile}), g.Load(d.begin, {end_tile}));
  g.Call<ToyGroupSum>(
       "sum",
       {Operand(y).Region({expert_places}), d.begin, d.tile_ptr, Operand(sums).Region({At(0)})},
       {5}, {kToyExperts})
      .Wait(tile_done, {IndexRange(first_tile, end_tile)});
  return g;
}

// Speculative acceptance: how many tokens of each row are kept is decided by tasks, the grid behind
// runs over all kept tokens, and each row goes on when its own are done.
inline Graph ToySpeculationGraph() {
  Graph g("toy_speculation");
  const int most = 4, max_tokens = kToyMaxRows * most;
  const Expr rows = g.AddSymbol("rows", 1, kToyMaxRows);
  const DimRef rows_dim = g.Dim(rows);
  const TensorId in = g.AddTensor("in", DType::kI32, {rows}, TensorRole::kInput);
  const TensorId logits = g.AddTensor("logits", DType::kI32, {rows}, TensorRole::kScratch);
  const TensorId kv = g.AddTensor("kv", DType::kI32, {max_tokens}, TensorRole::kScratch);
  const TensorId out = g.AddTensor("out", DType::kI32, {rows}, TensorRole::kOutput);

  const EventId verified = g.AddEvents("verified", {rows});
  const EventId accepted = g.AddEvents("accepted", {rows});
  const EventId planned = g.AddEvents("planned", {1});
  const EventId row_done = g.AddEvents("row_done", {rows});
  const TensorId kept = g.AddPublished("kept", {rows}, 0, most, accepted, {At(0)});
  const ToyDispatchTensors d =
      AddDispatch(g, "tokens", kToyMaxRows, max_tokens, max_tokens, planned);
  g.SetCounts(row_done, kept);

  g.Call<Mix1>("verify", {Operand(in).Region({At(0)}), Operand(logits).Region({At(0)})},
               {1, {{0, 1, rows_dim}, {0, 1, rows_dim}}}, {rows})
      .Notify(verified, {At(0)});
  g.Call<ToyChoose>("accept", {Operand(logits).Region({At(0)}), Operand(kept).Region({At(0)})},
                    {2, 1, 0, most}, {rows})
      .Wait(verified, {At(0)})
      .Notify(accepted, {At(0)});
  g.Call<ToyDispatch>(
       "plan", {kept, d.counts, d.tile_ptr, d.tile_group, d.total, d.order, d.begin, d.where},
       {{-1, 0}, rows_dim, 1, 1}, {1})
      .Wait(accepted, {IndexRange(0, rows)})
      .Notify(planned, {0});
  const Expr row = g.Load(d.tile_group, {At(0)});
  g.Call<ToyPair>("append",
                  {logits, logits, d.tile_group, d.tile_group, Operand(kv).Region({At(0)})}, {3},
                  {g.Load(d.total, {0})})
      .Wait(accepted, {row})
      .Notify(row_done, {row});
  g.Call<ToyGatherRange>("next",
                         {Operand(kv).Region({IndexRange(g.Load(d.tile_ptr, {At(0)}),
                                                         g.Load(d.tile_ptr, {At(0) + 1}))}),
                          d.tile_ptr, Operand(out).Region({At(0)})},
                         {4}, {rows})
      .Wait(planned, {0})
      .Wait(row_done, {At(0)});
  return g;
}

// Block-sparse attention: which key blocks a query block reads is chosen on the device; one task
// per pair, which waits for its key block only (gather) and counts towards its query block (gather,
// with counts).
inline Graph ToySparseAttentionGraph() {
  Graph g("toy_sparse_attention");
  const int most = 4, max_pairs = kToyMaxRows * most;
  const Expr blocks = g.AddSymbol("blocks", 0, kToyMaxRows);
  const DimRef blocks_dim = g.Dim(blocks);
  const TensorId in = g.AddTensor("in", DType::kI32, {blocks}, TensorRole::kInput);
  const TensorId q = g.AddTensor("q", DType::kI32, {blocks}, TensorRole::kScratch);
  const TensorId k = g.AddTensor("k", DType::kI32, {blocks}, TensorRole::kScratch);
  const TensorId partial = g.AddTensor("partial", DType::kI32, {max_pairs}, TensorRole::kScratch);
  const TensorId out = g.AddTensor("out", DType::kI32, {blocks}, TensorRole::kOutput);

  const EventId q_done = g.AddEvents("q_done", {blocks});
  const EventId k_done = g.AddEvents("k_done", {blocks});
  const EventId selected = g.AddEvents("selected", {1});
  const EventId merged = g.AddEvents("merged", {blocks});
  const TensorId counts = g.AddPublished("counts", {blocks}, 0, most, selected, {0});
  const TensorId ptr = g.AddPublished("ptr", {kToyMaxRows + 1}, 0, max_pairs, selected, {0});
  const TensorId first = g.AddPublished("first", {max_pairs}, 0, kToyMaxRows - 1, selected, {0});
  const TensorId second = g.AddPublished("second", {max_pairs}, 0, kToyMaxRows - 1, selected, {0});
  const TensorId total = g.AddPublished("total", {1}, 0, max_pairs, selected, {0});
  g.SetCounts(merged, counts);

  const ToyParams one_to_one = {1, {{0, 1, blocks_dim}, {0, 1, blocks_dim}}};
  g.Call<Mix1>("queries", {Operand(in).Region({At(0)}), Operand(q).Region({At(0)})}, one_to_one,
               {blocks})
      .Notify(q_done, {At(0)});
  g.Call<Mix1>("keys", {Operand(in).Region({At(0)}), Operand(k).Region({At(0)})}, one_to_one,
               {blocks})
      .Notify(k_done, {At(0)});
  g.Call<ToySelect>("select", {q, counts, ptr, first, second, total}, {blocks_dim, 2, most}, {1})
      .Wait(q_done, {IndexRange(0, blocks)})
      .Notify(selected, {0});
  const Expr query = g.Load(first, {At(0)}), key = g.Load(second, {At(0)});
  g.Call<ToyPair>("attend",
                  {Operand(q).Region({query}), Operand(k).Region({key}), first, second,
                   Operand(partial).Region({At(0)})},
                  {3}, {g.Load(total, {0})})
      .Wait(k_done, {key})
      .Notify(merged, {query});
  g.Call<ToyGatherRange>(
       "merge",
       {Operand(partial).Region({IndexRange(g.Load(ptr, {At(0)}), g.Load(ptr, {At(0) + 1}))}), ptr,
        Operand(out).Region({At(0)})},
       {4}, {blocks})
      .Wait(selected, {0})
      .Wait(merged, {At(0)});
  return g;
}

// Early exit: after every layer a task decides how many rows go on; the next layer's extent is that
// number, which may be zero: its gate passes readiness on to the layers behind.
inline Graph ToyEarlyExitGraph(int layers = 4) {
  Graph g("toy_early_exit");
  const Expr rows = g.AddSymbol("rows", 0, kToyMaxRows);
  const DimRef rows_dim = g.Dim(rows);
  const TensorId in = g.AddTensor("in", DType::kI32, {rows}, TensorRole::kInput);
  const TensorId x = g.AddTensor("x", DType::kI32, {layers + 1, kToyMaxRows}, TensorRole::kScratch);
  const TensorId out = g.AddTensor("out", DType::kI32, {kToyMaxRows}, TensorRole::kOutput);
  const EventId ready = g.AddEvents("ready", {layers + 1});
  const EventId decided = g.AddEvents("decided", {layers + 1});
  const TensorId live = g.AddPublished("live", {layers + 1}, 0, kToyMaxRows, decided, {At(0)});

  g.BeginSection("begin", 1);
  g.Call<ToyStart>("start", {Operand(live, Expr(0))}, {rows_dim}, {1}).Notify(decided, {0});
  g.Call<Mix1>("embed", {in, Operand(x, Expr(0)).Region({At(0)})},
               {1, {{0, 1, rows_dim}, {0, 1, rows_dim}}}, {rows})
      .Notify(ready, {0});
  g.BeginSection("layers", layers);
  g.Call<Mix1>(
       "layer", {Operand(x, Layer()).Region({At(0)}), Operand(x, Layer() + 1).Region({At(0)})},
       {2, {{0, 1, {-1, kToyMaxRows}}, {0, 1, {-1, kToyMaxRows}}}}, {g.Load(live, {Layer()})})
      .Wait(ready, {Layer()})
      .Notify(ready, {Layer() + 1});
  g.Call<ToyExit>("exit",
                  {Operand(x, Layer() + 1), Operand(live, Layer()), Operand(live, Layer() + 1)},
                  {3}, {1})
      .Wait(ready, {Layer() + 1})
      .Wait(decided, {Layer()})
      .Notify(decided, {Layer() + 1});
  g.BeginSection("end", 1);
  g.Call<Mix1>("head", {Operand(x, Expr(layers)).Region({At(0)}), Operand(out).Region({At(0)})},
               {4, {{0, 1, {-1, kToyMaxRows}}, {0, 1, {-1, kToyMaxRows}}}},
               {g.Load(live, {layers})})
      .Wait(ready, {layers});
  return g;
}

// Layers of tiles with scratch that all layers share: affine edges, reuse, and a last reader.
inline Graph ToyLayersSharedGraph(int layers = 3) {
  Graph g("toy_layers_shared");
  const Expr rows = g.AddSymbol("rows", 0, kToyMaxRows);
  const DimRef rows_dim = g.Dim(rows);
  const Expr tiles = CeilDiv(rows, 4);
  const TensorId in = g.AddTensor("in", DType::kI32, {rows}, TensorRole::kInput);
  const TensorId x = g.AddTensor("x", DType::kI32, {rows}, TensorRole::kScratch);
  const TensorId h = g.AddTensor("h", DType::kI32, {rows}, TensorRole::kScratch);
  const TensorId out = g.AddTensor("out", DType::kI32, {rows}, TensorRole::kOutput);
  const EventId x_done = g.AddEvents("x_done", {layers + 1, tiles});
  const EventId h_done = g.AddEvents("h_done", {layers, tiles});
  const ToySpan row = {0, 1, rows_dim}, tile = {0, 4, rows_dim};
  const IndexRange tile_rows(At(0) * 4, Min(At(0) * 4 + 4, rows));

  g.BeginSection("begin", 1);
  g.Call<Mix1>("embed", {in, Operand(x).Region({At(0)})}, {1, {row, row}}, {rows})
      .Notify(x_done, {0, At(0) / 4});
  g.BeginSection("layers", layers);
  g.Call<Mix1>("up", {Operand(x).Region({tile_rows}), Operand(h).Region({tile_rows})},
               {2, {tile, tile}}, {tiles})
      .Wait(x_done, {Layer(), At(0)})
      .Notify(h_done, {Layer(), At(0)});
  // Reads the tile's h, then overwrites one row of x: every reader of that row is behind h_done.
  g.Call<Mix1>("down",
               {Operand(h).Region({IndexRange(At(0), At(0) + 1)}), Operand(x).Region({At(0)})},
               {3, {row, row}}, {rows})
      .Wait(h_done, {Layer(), At(0) / 4})
      .Notify(x_done, {Layer() + 1, At(0) / 4});
  g.BeginSection("end", 1);
  g.Call<Mix1>("head", {Operand(x).Region({At(0)}), Operand(out).Region({At(0)})}, {4, {row, row}},
               {rows})
      .Wait(x_done, {layers, At(0) / 4});
  return g;
}

}  // namespace eventide
