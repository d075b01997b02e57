// The binary's stress: exit codes, its JSON, and a line that is given back.
#include <nlohmann/json.hpp>

#include "tests/support/run_binary.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

using Json = nlohmann::json;

TEST_CASE("stress reports every key of the contract, on the CPU and in the simulator") {
  if (Missing()) return;
  for (const char* device : {"cpu", "sim"}) {
    const Ran ran = Run(std::string("stress --cases 10 --seed 3 --json --device ") + device);
    INFO(ran.out);
    REQUIRE(ran.code == 0);
    const Json json = Json::parse(ran.out);
    CHECK(json["cases"] == 10);
    CHECK(json["failures"] == 0);
    CHECK(json["compilations_after_ready"] == 0);
    CHECK(json["distinct_shapes"] > 5);
    CHECK(json["seed"] == 3);
    CHECK(json["backend"] == device);
  }
}

TEST_CASE("seconds bound a run, and a replayed case is one case") {
  if (Missing()) return;
  const Ran timed = Run("stress --device cpu --seconds 0.3 --kinds graph --json");
  REQUIRE(timed.code == 0);
  CHECK(Json::parse(timed.out)["seconds"] < 30);
  const Ran one =
      Run("stress --device sim --json --replay 'graph seed=4 a=2 b=1 workers=2 pages=6'");
  REQUIRE(one.code == 0);
  CHECK(Json::parse(one.out)["cases"] == 1);
}

TEST_CASE("what is no case is bad usage; a case that cannot be is a failure that says why") {
  if (Missing()) return;
  CHECK(Run("stress --device cpu --replay 'graph a'").code == 2);
  CHECK(Run("stress --device cpu --replay garbage").code == 2);
  CHECK(Run("stress --device cpu --kinds dance").code == 2);
  CHECK(Run("stress --cases -1").code == 2);
  const Ran ran = Run("stress --device sim --json --replay 'graph seed=4 pages=1'");
  CHECK(ran.code == 1);
  CHECK(Json::parse(ran.out)["first_failure"]["sort"] == "refused");
}

}  // namespace
}  // namespace eventide
