#include "jit/codegen.h"

#include <filesystem>

#include "tests/jit/toy_graphs.h"

namespace eventide {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string Generate(const Graph& graph) {
  absl::StatusOr<Program> program = Lower(graph);
  INFO(program.status().ToString());
  REQUIRE(program.ok());
  return Codegen(*program, {"device/arch/sm90.cuh"});
}

// With -DEVENTIDE_UPDATE_GOLDEN=ON the file is written instead of compared.
void CheckGolden(const std::string& name, const std::string& text) {
  const std::string path = SourceFile("tests/golden/jit/" + name);
#ifdef EVENTIDE_UPDATE_GOLDEN
  std::ofstream(path) << text;
#endif
  INFO("after a wanted change configure with -DEVENTIDE_UPDATE_GOLDEN=ON and run this test once");
  CHECK(text == ReadText(path));
}

TEST_CASE("the generated source of layers with affine edges is the golden one") {
  CheckGolden("toy_layers.cu", Generate(ToyLayersGraph()));
}

TEST_CASE("the generated source of a device-resident extent is the golden one") {
  CheckGolden("toy_count.cu", Generate(ToyCountGraph()));
}

TEST_CASE("generating twice gives the same text") {
  CHECK(Generate(ToyCountGraph()) == Generate(ToyCountGraph()));
}

TEST_CASE("every op body has one call site however many grids use it") {
  Graph g("many");
  const Expr tokens = g.AddSymbol("tokens", 1, kToyMaxTokens);
  const TensorId x = g.AddTensor("x", DType::kU32, {tokens, kToyColumns}, TensorRole::kOutput);
  const EventId done = g.AddEvents("done", {2});
  g.Call<ToyFill>("first", {x}, {g.Dim(tokens), 1}, {CeilDiv(tokens, 8)}).Notify(done, {0});
  g.Call<ToyFill>("second", {x}, {g.Dim(tokens), 2}, {CeilDiv(tokens, 8)})
      .Wait(done, {0})
      .Notify(done, {1});
  g.Call<ToyFill>("third", {x}, {g.Dim(tokens), 3}, {CeilDiv(tokens, 8)}).Wait(done, {1});
  const std::string text = Generate(g);
  const std::string call = "CallCompute<ToyFill, BF16>";
  const size_t first = text.find(call);
  REQUIRE(first != std::string::npos);
  CHECK(text.find(call, first + 1) == std::string::npos);
}

TEST_CASE("names of ops and variants are spelled as their headers do") {
  CHECK(OpStructName("rms_norm") == "RmsNorm");
  CHECK(OpStructName("linear") == "Linear");
  CHECK(OpStructName("mix1") == "Mix1");
  CHECK(std::string(VariantTypeName(0)) == "BF16");
  CHECK(std::string(VariantTypeName(1)) == "F16");
  CHECK(std::string(VariantTypeName(2)) == "float");
}

TEST_CASE("a name with anything in it stays within its comment") {
  Graph g("evil");
  const TensorId x = g.AddTensor("x", DType::kU32, {64}, TensorRole::kOutput);
  const EventId done = g.AddEvents("done\n#error", {1});
  g.Call<ToyFill>("a\n#error no", {x}, {DimRef{-1, 1}, 1}, {1}).Notify(done, {0});
  g.Call<ToyFill>("b */ \\\n", {x}, {DimRef{-1, 1}, 1}, {1}).Wait(done, {0});
  CHECK(Generate(g).find("\n#error") == std::string::npos);
}

TEST_CASE("headers are collected through includes, and a missing one is named") {
  absl::StatusOr<std::vector<HeaderText>> headers =
      CollectHeaders("#include \"device/loop.h\"\n#include \"ops/toy_mix.h\"\n", ToyHeaders());
  INFO(headers.status().ToString());
  REQUIRE(headers.ok());
  std::vector<std::string> names;
  for (const HeaderText& header : *headers) names.push_back(header.name);
  for (const char* wanted :
       {"device/base.h", "device/loop.h", "ops/toy_mix.h", "tests/jit/ops/toy_base.h"}) {
    CHECK(std::count(names.begin(), names.end(), wanted) == 1);
  }
  CHECK(std::count(names.begin(), names.end(), "ops/toy_count.h") == 0);

  const absl::Status missing = CollectHeaders("  # include \"ops/no_such.h\"\n").status();
  CHECK(missing.code() == absl::StatusCode::kNotFound);
  CHECK(std::string(missing.message()).find("ops/no_such.h") != std::string::npos);
}

}  // namespace
}  // namespace eventide
