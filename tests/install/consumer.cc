// A program of somebody else: builds a graph of a model, lowers it and names the backends.
#include <cstdio>

#include "models/decoder.h"
#include "models/presets.h"
#include "serve/backend.h"

int main() {
  eventide::DecoderLimits limits;
  limits.num_blocks = 64;
  auto decoder =
      eventide::BuildDecoder(*eventide::PresetConfig("test-llama"), eventide::DType::kF32, limits);
  if (!decoder.ok()) return 1;
  auto program = eventide::Lower(decoder->graph, eventide::DecoderVerifyOptions(*decoder));
  if (!program.ok()) return 1;
  auto backend = eventide::MakeBackend(*std::move(program), {.device = "cpu", .workers = 2});
  if (!backend.ok()) return 1;
  std::printf("%s, %d workers\n", backend->device.c_str(), backend->executor->workers());
  return 0;
}
