// A start taken apart on the CPU backend, and the names that its numbers have.
#include "models/load.h"
#include "serve/megakernel_runner.h"
#include "serve/startup.h"
#include "tests/support/test.h"

namespace eventide {
namespace {

struct Started {
  std::unique_ptr<MegakernelRunner> runner;
  SteadyClock clock;
  std::unique_ptr<Engine> engine;
};

std::unique_ptr<Started> Start(PhaseLog* log, int max_tokens) {
  auto source = OpenModel("random:test-llama@3", log);
  REQUIRE(source.ok());
  RunnerOptions options;
  options.backend.device = "cpu";
  options.backend.workers = 2;
  options.backend.phases = log;
  options.limits.max_rows = options.limits.max_outputs = 4;
  options.limits.max_tokens = max_tokens;
  options.limits.max_model_len = 64;
  auto runner = MegakernelRunner::Create(**source, options);
  REQUIRE(runner.ok());
  auto started = std::make_unique<Started>();
  started->runner = *std::move(runner);
  auto engine = Engine::Create(started->runner.get(), &started->clock, {});
  REQUIRE(engine.ok());
  started->engine = *std::move(engine);
  return started;
}

TEST_CASE("every phase that a CPU has is on the log, in the order in which reports show them") {
  PhaseLog log;
  const auto started = Start(&log, 8);
  REQUIRE(ServeFirstToken(started->engine.get(), 40, &log).ok());
  StartupReport report;
  FinishReport(log, log.TotalMs() + 2, &report);
  std::vector<std::string> names;
  for (const Phase& phase : report.phases) names.push_back(phase.name);
  CHECK(names == std::vector<std::string>{"device", "config", "weights_map", "pack", "graph",
                                          "verify", "generate", "kv_alloc", "first_step",
                                          "first_token"});
  CHECK(report.unaccounted_ms == Approx(2));
  for (const char* name : {"pack", "graph", "verify", "first_step"}) CHECK(report.Ms(name) > 0);
  // Forty tokens are five steps of eight; two of them have run when the first one retires.
  CHECK(report.Ms("first_token") > 0.01 * report.Ms("first_step"));
  CHECK(started->engine->stats().steps >= 2);
}

TEST_CASE("shapes that the engine has not seen are counted, however small its limits are") {
  PhaseLog log;
  const auto started = Start(&log, 8);
  REQUIRE(ServeFirstToken(started->engine.get(), 5, &log).ok());
  const auto shapes = TryShapes(started->engine.get(), 6);
  REQUIRE(shapes.ok());
  CHECK(*shapes > 12);
  CHECK_FALSE(started->engine->HasWork());
  CHECK(CountBackends().kernels == 0);
}

StartupReport Report(double total_ms) {
  StartupReport report;
  report.model = "m";
  report.device = "cuda";
  report.phases = {{"generate", 100}, {"nvrtc", total_ms / 2}, {"first_step", 0.2}};
  report.total_ms = total_ms;
  report.unaccounted_ms = 0.5;
  report.compilations = 1;
  report.cubin_bytes = 99;
  report.cache = "cold";
  report.cache_note = "note";
  return report;
}

TEST_CASE("times have the names and units of vllm bench startup") {
  const std::vector<StartupReport> reports = {Report(1000), Report(3000), Report(2000)};
  const nlohmann::json json = StartupTimesJson("cold", reports);
  CHECK(json["avg_cold_startup_time"] == Approx(2.0));
  CHECK(json["cold_startup_times"] == nlohmann::json({1.0, 3.0, 2.0}));
  CHECK(json["avg_cold_compilation_time"] == Approx(1.1));
  // As numpy.percentile gives them for 1, 2, 3.
  CHECK(json["cold_startup_percentiles"]["10"] == Approx(1.2));
  CHECK(json["cold_startup_percentiles"]["25"] == Approx(1.5));
  CHECK(json["cold_startup_percentiles"]["50"] == Approx(2.0));
  CHECK(json["cold_startup_percentiles"]["99"] == Approx(2.98));
  CHECK(json["cold_compilation_percentiles"].size() == 6);
  CHECK(StartupTimesJson("warm", {}).empty());
}

TEST_CASE("a report survives its JSON, and a broken one is told") {
  const StartupReport report = Report(1234);
  const auto back = StartupFromJson(nlohmann::json::parse(ToJson(report).dump()));
  REQUIRE(back.ok());
  CHECK(ToJson(*back) == ToJson(report));
  CHECK_FALSE(StartupFromJson(nlohmann::json::parse(R"({"model": 3})")).ok());
}

TEST_CASE("the table has a line for each phase, and bars in proportion") {
  StartupReport cached = Report(500);
  cached.cache = "cached";
  const std::string table = StartupTable(std::vector<StartupReport>{Report(1000), cached});
  CHECK(table.find("nvrtc            500.00 ms   250.00 ms  " + std::string(40, '#') + "\n") !=
        std::string::npos);
  CHECK(table.find("  " + std::string(20, '=') + "\n") != std::string::npos);
  CHECK(table.find("unaccounted") != std::string::npos);
  CHECK(table.find("cache: note") != std::string::npos);
  CHECK(table.find("module_load") == std::string::npos);
}

}  // namespace
}  // namespace eventide
