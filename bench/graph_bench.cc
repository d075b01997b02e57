// What a decoder's graph costs the host before the first step: building it, verifying and lowering
// it, generating its source.
#include <benchmark/benchmark.h>

#include "jit/codegen.h"
#include "models/decoder.h"
#include "models/presets.h"

namespace eventide {
namespace {

const char* const kModels[] = {"test-llama", "llama-3.2-1b", "qwen3-8b"};

Decoder Build(const char* model) {
  DecoderLimits limits;
  limits.num_blocks = 8192;
  absl::StatusOr<Decoder> decoder = BuildDecoder(*PresetConfig(model), DType::kBF16, limits);
  EVT_CHECK(decoder.ok());
  return *std::move(decoder);
}

void BuildGraph(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Build(kModels[state.range(0)]));
  state.SetLabel(kModels[state.range(0)]);
}
BENCHMARK(BuildGraph)->DenseRange(0, 2)->Unit(benchmark::kMillisecond);

void VerifyAndLower(benchmark::State& state) {
  const Decoder decoder = Build(kModels[state.range(0)]);
  for (auto _ : state) EVT_CHECK(Lower(decoder.graph, DecoderVerifyOptions(decoder)).ok());
  state.SetLabel(kModels[state.range(0)]);
}
BENCHMARK(VerifyAndLower)->DenseRange(0, 2)->Unit(benchmark::kMillisecond);

void GenerateSource(benchmark::State& state) {
  const Decoder decoder = Build(kModels[state.range(0)]);
  const absl::StatusOr<Program> program = Lower(decoder.graph, DecoderVerifyOptions(decoder));
  EVT_CHECK(program.ok());
  for (auto _ : state) benchmark::DoNotOptimize(Codegen(*program, {"device/arch/cpu.h"}));
  state.SetLabel(kModels[state.range(0)]);
}
BENCHMARK(GenerateSource)->DenseRange(0, 2)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace eventide

BENCHMARK_MAIN();
