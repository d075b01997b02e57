// What is said where a program's memory does not fit: how much is needed and free, and what to lower.
#include "runtime/memory.h"

#include "tests/support/test.h"

namespace eventide {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

std::string Said(int64_t weights, int64_t state, int64_t rest, int64_t free) {
  Program program;
  program.name = "llama";
  MemoryPlan plan;
  plan.bytes = {weights * kGiB, state * kGiB, 0, rest * kGiB, 0};
  const absl::Status status = TooLittleMemory(program, plan, "this machine", free * kGiB);
  CHECK(absl::IsResourceExhausted(status));
  return std::string(status.message());
}

TEST_CASE("too little memory names what takes how much, what is free, and the flags that lower it") {
  CHECK(Said(1, 40, 2, 20) ==
        "llama needs 44032 MiB of memory (weights 1024, state such as KV blocks 40960, activations and the rest "
        "2048); this machine has 20480 MiB free: lower --num-blocks, or --max-model-len and --max-num-seqs, which "
        "it follows where it is not given, or end other processes there");
}

TEST_CASE("the flags are those of the part whose shrinking is enough, or of both") {
  const std::string weights = "weights alone do not fit: use a smaller model, or end",
                    blocks = "free: lower --num-blocks",
                    step = "free: lower --max-num-batched-tokens or --max-num-seqs";
  CHECK(Said(30, 10, 10, 20).find(weights) != std::string::npos);
  CHECK(Said(1, 2, 40, 20).find(step) != std::string::npos);
  CHECK(Said(1, 2, 40, 20).find("--num-blocks") == std::string::npos);
  CHECK(Said(1, 40, 2, 20).find(blocks) != std::string::npos);
  CHECK(Said(1, 40, 2, 20).find("--max-num-batched-tokens") == std::string::npos);
  CHECK(Said(1, 40, 30, 20).find(blocks) != std::string::npos);
  CHECK(Said(1, 40, 30, 20).find("; and lower --max-num-batched-tokens") != std::string::npos);
  CHECK(Said(1, 30, 40, 20).find(step) != std::string::npos);
  CHECK(Said(1, 30, 40, 20).find("; and lower --num-blocks") != std::string::npos);
}

TEST_CASE("an operand has the layer's part of its tensor, or the part that its expression names, or all of it") {
  Graph graph("parts");
  graph.AddTensor("one_for_all", DType::kF32, {5, 10}, TensorRole::kScratch);
  graph.AddTensor("one_a_layer", DType::kF32, {3, 10}, TensorRole::kWeight);
  graph.AddTensor("many", DType::kF32, {7, 10}, TensorRole::kState);
  Program program;
  program.tensors = graph.tensors();
  program.sections = {{"layers", 3, 0, 1}};
  const ProgramGrid grid;
  const auto place = [&](const Operand& operand) {
    const absl::StatusOr<OperandPlace> place = PlaceOf(program, grid, operand);
    INFO(place.status());
    REQUIRE(place.ok());
    return std::vector<int64_t>{place->offset, place->layer_stride, place->layer_bytes};
  };
  CHECK(place(Operand(TensorId{0})) == std::vector<int64_t>{0, 0, 200});
  CHECK(place(Operand(TensorId{1})) == std::vector<int64_t>{0, 40, 40});
  CHECK(place(Operand(TensorId{1}, Expr(2))) == std::vector<int64_t>{80, 0, 40});
  CHECK(place(Operand(TensorId{2}, Layer() * 2 + 1)) == std::vector<int64_t>{40, 80, 40});
  CHECK(PlaceOf(program, grid, Operand(TensorId{2}, Layer() * 3 + 1)).status().message().find("part 7") !=
        std::string::npos);
}

}  // namespace
}  // namespace eventide
