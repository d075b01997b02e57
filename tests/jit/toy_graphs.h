// Small graphs with toy ops for tests of the generator, of NVRTC and of whole launches, with the
// plain results they must give.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/graph.h"
#include "core/program.h"
#include "jit/sources.h"
#include "tests/jit/ops/toy_count.h"
#include "tests/jit/ops/toy_fill.h"
#include "tests/jit/ops/toy_mark.h"
#include "tests/jit/ops/toy_mix.h"
#include "tests/jit/ops/toy_total.h"
#include "tests/support/test.h"

namespace eventide {

// The toy ops' headers, named as a generated source includes them.
inline std::vector<HeaderText> ToyHeaders() {
  std::vector<HeaderText> headers;
  const auto add = [&](const std::string& name, const std::string& path) {
    std::ifstream in(SourceFile(path));
    if (!in) in.open(path);  // a binary carried to another machine, run in the repository's root
    std::ostringstream text;
    text << in.rdbuf();
    headers.push_back({name, text.str()});
  };
  for (const char* name : {"toy_count", "toy_fill", "toy_mark", "toy_mix", "toy_total"}) {
    add(absl::StrCat("ops/", name, ".h"), absl::StrCat("tests/jit/ops/", name, ".h"));
  }
  add("tests/jit/ops/toy_base.h", "tests/jit/ops/toy_base.h");
  return headers;
}

inline constexpr int kToyLayers = 3;
inline constexpr int kToyPages = 3;
inline constexpr int kToyMaxTokens = 64;
inline constexpr int kToyTiles = kToyColumns / ToyMix::kRows;
inline constexpr int kToyLimit = 50;

// fill -> mix in every layer: affine edges, layers, a symbol, streamed pages.
inline Graph ToyLayersGraph() {
  Graph g("toy_layers");
  const Expr tokens = g.AddSymbol("tokens", 0, kToyMaxTokens);
  const TensorId weight =
      g.AddTensor("weight", DType::kU32, {kToyLayers, kToyTiles * kToyPages * ToyMix::kPageWords},
                  TensorRole::kWeight);
  const TensorId x =
      g.AddTensor("x", DType::kU32, {kToyLayers + 1, tokens, kToyColumns}, TensorRole::kOutput);
  const EventId ready = g.AddEvents("ready", {kToyLayers + 1, CeilDiv(tokens, kToyTokens)});
  const DimRef tokens_dim = g.Dim(tokens);
  // A task touches its 8 tokens only, and reads all columns of them.
  const IndexRange mine(At(0) * kToyTokens, At(0) * kToyTokens + kToyTokens);
  const IndexRange columns(At(1) * ToyMix::kRows, At(1) * ToyMix::kRows + ToyMix::kRows);
  g.BeginSection("start", 1);
  g.Call<ToyFill>("fill", {Operand(x, Expr(0)).Region({mine})}, {tokens_dim, 11},
                  {CeilDiv(tokens, kToyTokens)})
      .Notify(ready, {0, At(0)});
  g.BeginSection("layers", kToyLayers);
  g.Call<ToyMix>("mix",
                 {weight, Operand(x, Layer()).Region({mine}),
                  Operand(x, Layer() + 1).Region({mine, columns})},
                 {tokens_dim, kToyPages}, {CeilDiv(tokens, kToyTokens), kToyTiles})
      .Wait(ready, {Layer(), At(0)})
      .Notify(ready, {Layer() + 1, At(0)});
  return g;
}

// fill -> count (publishes an extent) -> mark (that many tasks) -> total.
inline Graph ToyCountGraph(uint32_t seed = 7) {
  Graph g("toy_count");
  const Expr tokens = g.AddSymbol("tokens", 1, kToyMaxTokens);
  const TensorId x = g.AddTensor("x", DType::kU32, {tokens, kToyColumns}, TensorRole::kScratch);
  const TensorId mark = g.AddTensor("mark", DType::kU32, {kToyLimit}, TensorRole::kScratch);
  const TensorId total = g.AddTensor("total", DType::kU32, {1}, TensorRole::kOutput);
  const EventId filled = g.AddEvents("filled", {CeilDiv(tokens, kToyTokens)});
  const EventId counted = g.AddEvents("counted", {1});
  const EventId marked = g.AddEvents("marked", {1});
  const TensorId count = g.AddPublished("count", {1}, 0, kToyLimit - 1, counted, {0});
  g.SetCounts(marked, count);
  g.Call<ToyFill>("fill", {x}, {g.Dim(tokens), seed}, {CeilDiv(tokens, kToyTokens)})
      .Notify(filled, {At(0)});
  g.Call<ToyCount>("count", {x, count}, {kToyLimit}, {1})
      .Wait(filled, {IndexRange(0, CeilDiv(tokens, kToyTokens))})
      .Notify(counted, {0});
  g.Call<ToyMark>("mark", {x, mark}, {0}, {g.Load(count, {0})})
      .Wait(counted, {0})
      .Notify(marked, {0});
  g.Call<ToyTotal>("total", {mark, count, total}, {0}, {1}).Wait(marked, {0}).Wait(counted, {0});
  return g;
}

// What "weight" must hold, and what x must be after every layer: [layer][token][column].
inline std::vector<uint32_t> ToyWeights() {
  std::vector<uint32_t> weights(size_t{kToyLayers} * kToyTiles * kToyPages * ToyMix::kPageWords);
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = ToyHash(99, static_cast<uint32_t>(i)) | 1;
  return weights;
}

inline std::vector<uint32_t> ToyLayersExpected(int tokens, const std::vector<uint32_t>& weights) {
  std::vector<uint32_t> x(size_t{kToyLayers + 1} * tokens * kToyColumns);
  for (int i = 0; i < tokens * kToyColumns; ++i) x[i] = ToyHash(11, i);
  for (int layer = 0; layer < kToyLayers; ++layer) {
    const uint32_t* from = &x[size_t{1} * layer * tokens * kToyColumns];
    uint32_t* to = &x[size_t{1} * (layer + 1) * tokens * kToyColumns];
    for (int token = 0; token < tokens; ++token) {
      for (int c = 0; c < kToyColumns; ++c) {
        for (int page = 0; page < kToyPages; ++page) {
          const size_t tile =
              size_t{1} * (layer * kToyTiles + c / ToyMix::kRows) * kToyPages + page;
          const uint32_t* w = &weights[tile * ToyMix::kPageWords + c % ToyMix::kRows * kToyColumns];
          for (int j = 0; j < kToyColumns; ++j) {
            to[token * kToyColumns + c] += w[j] * from[token * kToyColumns + j];
          }
        }
      }
    }
  }
  return x;
}

inline uint32_t ToyCountExpected(uint32_t seed = 7) {
  const uint32_t count = ToyHash(seed, 0) % kToyLimit;
  uint32_t total = 0;
  for (uint32_t i = 0; i < count; ++i) total += ToyHash(seed, i) + 1;
  return total;
}

}  // namespace eventide
