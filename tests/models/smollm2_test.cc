#include "models/load.h"
#include "tests/support/models.h"

using namespace eventide;

TEST_CASE("SmolLM2's GGUF file loads as the Llama it is") {
  const auto path = SmolLm2Path();
  if (!path) return;
  const auto source = OpenModel(*path);
  INFO(source.status().message());
  REQUIRE(source.ok());
  const ModelConfig& config = (*source)->config();
  CHECK(config.heads == 9);
  CHECK(config.kv_heads == 3);
  CHECK(config.head_dim == 64);
  CHECK(config.hidden == 576);
  CHECK(config.layers == 30);
  CHECK(config.vocab == 49152);
  CHECK(config.rope.theta == 100000.0);
  CHECK(config.tie_embeddings);
  CHECK(config.eos == std::vector<int>{2});
  CHECK(config.dtype == DType::kF32);
}
