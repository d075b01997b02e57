// scripts/plot_shapes.py on a sweep whose padding is known; tables, since those need no matplotlib.
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/support/temp_folder.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::ordered_json;

bool HavePython() {
  if (std::system("python3 -c pass >/dev/null 2>&1") == 0) return true;
  Skip("no python3");
  return false;
}

Json Sweep(const char* axis, int last) {
  Json points = Json::array();
  for (int size = 1; size <= last; ++size) {
    points.push_back({{axis, size}, {"ms", {{"p5", size}, {"p50", size}, {"p95", size}}}});
  }
  return {{"points", points},
          {"limit", 0.05},
          {"beyond", {7, 8}},
          {"worst_deviation", 0.07},
          {"worst_at", 7},
          {"cliffs", {7}},
          {"tile_steps", {{{"after", 8}, {"tile", 8}, {"ms", {8, 9}}, {"rise", 0.125}}}}};
}

// Exit code; what it printed.
int Plot(const Json& json, std::string* text) {
  const TempFolder folder;
  WriteFile(folder / "in.json", json.dump());
  const std::string command = "python3 '" + SourceFile("scripts/plot_shapes.py") + "' --text '" +
                              (folder / "in.json") + "' >'" + (folder / "out") + "' 2>&1";
  const int status = std::system(command.c_str());
  *text = ReadFile(folder / "out");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE(
    "plot_shapes says what padding to captured sizes would cost, and names steps and cliffs") {
  if (!HavePython()) return;
  const Json sweep = {{"model", "random:test-llama@3"},
                      {"gpu", "Pretend"},
                      {"compilations_after_ready", 0},
                      {"context", 512},
                      {"chunk_context", 0},
                      {"batch", Sweep("batch", 8)},
                      {"chunk", Sweep("chunk", 300)},
                      {"mixed",
                       {{{"batch", 8},
                         {"context", 512},
                         {"chunk", 512},
                         {"chunk_ms", 10.0},
                         {"decode_ms", 5.0},
                         {"both_ms", 10.5},
                         {"over_chunk", 1.05}}}}};
  for (const Json& json : {sweep, Json{{"gpu", "a whole run's"}, {"shapes", sweep}}}) {
    std::string text;
    CHECK(Plot(json, &text) == 0);
    CAPTURE(text);
    CHECK(text.find("test-llama on Pretend, batch 1 to 8, 8 points") != std::string::npos);
    // 3 as 4: a third; 5, 6, 7 as 8: 60, 33 and 14 %.
    CHECK(text.find("+17.6 % on average, +60.0 % at most") != std::string::npos);
    CHECK(text.find("behind 8 (tiles of 8): 8.000 to 9.000 ms, +12.5 %") != std::string::npos);
    CHECK(text.find("at no tile's end: 7\n") != std::string::npos);
    CHECK(text.find("     300   300.000   300.000") !=
          std::string::npos);  // larger than any captured size
    CHECK(text.find("1.050") != std::string::npos);
  }
  // What scripts/gpu-shapes --parts mixed leaves: rows beside chunks alone; and a curve too short for a worst point.
  Json mixed = sweep, none = Sweep("batch", 0);
  mixed["batch"] = mixed["chunk"] = none;
  std::string text;
  CHECK(Plot({{"gpu", "a whole run's"}, {"parts", Json::array()}, {"mixed", mixed}}, &text) == 0);
  CHECK(text.find("1.050") != std::string::npos);
  CHECK(Plot(mixed, &text) == 0);
  Json two = sweep;
  two["batch"] = Sweep("batch", 2);
  two["batch"]["worst_at"] = nullptr;
  CHECK(Plot(two, &text) == 0);
  CHECK(text.find("None") == std::string::npos);
}

TEST_CASE("plot_shapes refuses what is no sweep") {
  if (!HavePython()) return;
  std::string text;
  CHECK(Plot({{"rows", Json::array()}}, &text) == 1);
  CHECK(text.find("bench shapes") != std::string::npos);
  CHECK(Plot(Json::array(), &text) == 1);
}

}  // namespace
}  // namespace eventide
