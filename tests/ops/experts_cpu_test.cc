// Routing, grouping, expert linears and their combination on all host backends.
#include "tests/ops/experts_case.h"

namespace eventide {
namespace {

TEST_CASE("experts agree with float64 for odd shapes, scores and numbers of tokens") {
  for (const int tokens : {0, 1, 3, 8, 9, 33}) {
    CheckExperts(HostBackends(), ExpertsData<BF16>({tokens, 16, 4, 64, 24}, 1));
    CheckExperts(HostBackends(), ExpertsData<float>({tokens, 5, 3, 50, 33, false}, 2));
    ExpertsShape sigmoid{tokens, 7, 2, 33, 16};
    sigmoid.sigmoid = sigmoid.shared = true;
    sigmoid.scale = 2.5f;
    CheckExperts(HostBackends(), ExpertsData<F16>(sigmoid, 3));
    sigmoid.normalise = false;
    sigmoid.counted = true;
    CheckExperts(HostBackends(), ExpertsData<F16>(sigmoid, 4));
  }
}

TEST_CASE("one expert, as many chosen as there are, and 512 of them") {
  CheckExperts(HostBackends(), ExpertsData<float>({9, 1, 1, 32, 16}, 1));
  CheckExperts(HostBackends(), ExpertsData<BF16>({12, 16, 16, 32, 16}, 2));
  CheckExperts(HostBackends(), ExpertsData<BF16>({11, 512, 8, 32, 8}, 3));
  CheckExperts(HostBackends(), ExpertsData<F16>({2, 512, 512, 16, 8, false}, 4));
  CheckExperts(HostBackends(), ExpertsData<float>({17, 1024, 3, 16, 8}, 5));
}

TEST_CASE("an expert with 0, 1, tile - 1, tile and tile + 1 tokens, or with all of them") {
  ExpertsData<BF16> all({70, 16, 2, 64, 24}, 1);
  Steer(&all, [](int, int rank) { return rank == 0 ? 5 : 11; });
  CheckExperts(HostBackends(), all);
  // Expert 3 gets `count` tokens, and nobody expert 15.
  for (const int count : {0, 1, 31, 32, 33}) {
    ExpertsData<BF16> some({40, 16, 2, 64, 24}, 2);
    Steer(&some, [&](int token, int rank) {
      if (rank == 0 && token < count) return 3;
      return 4 + (token * 5 + rank) % 11;
    });
    for (int t = 0; t < 40; ++t) {
      for (const int nobody : {3, 15}) {
        float& logit = some.logits[static_cast<size_t>(t) * some.Stride() + nobody];
        if (logit < 30.0f) logit = -100.0f;
      }
    }
    CheckExperts(HostBackends(), some);
  }
}

TEST_CASE("an expert's bits do not depend on how many row tiles a task has") {
  for (const int tokens : {1, 9, 70}) {
    ExpertsData<BF16> data({tokens, 4, 2, 160, 96}, 6);
    for (const OpBackend& backend : HostBackends()) {
      INFO(backend.name << ", " << tokens << " tokens");
      data.s.wave = 1000;
      const std::vector<float> apart = ExpertsCase<BF16>(backend, data).Residual();
      for (const int wave : {1, 7, 30}) {
        data.s.wave = wave;
        ExpertsCase<BF16> some(backend, data);
        some.Check();
        const std::vector<float> bits = some.Residual();
        REQUIRE(std::memcmp(bits.data(), apart.data(), bits.size() * 4) == 0);
      }
    }
  }
}

TEST_CASE("drawn routes replace the choice, with one expert several times for a token too") {
  ExpertsData<BF16> data({19, 16, 4, 64, 24}, 3);
  RandomValues random(5);
  for (int i = 0; i < 7 * 4; ++i) data.drawn.push_back(random.Below(16));
  std::fill_n(data.drawn.begin() + 4, 4, 9);  // one expert four times
  data.drawn[8] = data.drawn[10] = 2;
  CheckExperts(HostBackends(), data);
}

TEST_CASE("equal logits go to the lower expert, both zeros are equal, NaN comes last") {
  ExpertsData<float> data({6, 12, 5, 16, 8}, 4);
  const float nan = std::nanf(""), inf = HUGE_VALF;
  const std::vector<std::vector<float>> rows = {
      {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
      {1, 2, 2, 2, 1, 2, 0, 2, 2, 2, 1, 1},
      {-0.0f, 0.0f, -0.0f, 0.0f, -1, -1, -1, -0.0f, 0, 0, 0, 0},
      {nan, 1, nan, 2, nan, 3, nan, 4, nan, -7, nan, -8},
      {-inf, 3, -inf, 2, 1, -inf, -inf, -inf, -inf, -inf, -inf, -inf}};
  for (size_t t = 0; t < rows.size(); ++t) {
    std::copy(rows[t].begin(), rows[t].end(), data.logits.begin() + static_cast<long>(t) * 13);
  }
  for (const OpBackend& backend : HostBackends()) {
    INFO(backend.name);
    ExpertsCase<float>(backend, data).Check();
  }
}

TEST_CASE("a token's experts have the same bits alone and in any company") {
  ExpertsShape shape{70, 16, 4, 64, 24};
  shape.shared = true;
  const ExpertsData<BF16> all(shape, 9);
  const std::vector<float> expected =
      ExpertsCase<BF16>({"cpu", BestCpuIsa(), 1, "static"}, all).Residual();
  std::vector<OpBackend> backends = HostBackends();
  backends.push_back({"cpu, 2 workers, tickets", BestCpuIsa(), 2, "ticket"});
  for (const OpBackend& backend : backends) {
    INFO(backend.name);
    for (const int tokens : {1, 7, 8, 9, 33}) {
      // The first ones, and one in the middle on its own.
      ExpertsData<BF16> some = all;
      some.s.tokens = tokens;
      some.x.resize(static_cast<size_t>(tokens) * 64);
      const std::vector<float> bits = ExpertsCase<BF16>(backend, some).Residual();
      REQUIRE(std::memcmp(bits.data(), expected.data(), bits.size() * 4) == 0);
    }
    ExpertsData<BF16> one = all;
    one.s.tokens = 1;
    const auto move = [](auto& values, size_t each) {
      values.assign(values.begin() + static_cast<long>(41 * each),
                    values.begin() + static_cast<long>(42 * each));
    };
    move(one.logits, static_cast<size_t>(one.Stride()));
    move(one.input, 64);
    move(one.sums, 4);
    move(one.x, 64);
    move(one.shared, 64);
    const std::vector<float> bits = ExpertsCase<BF16>(backend, one).Residual();
    REQUIRE(std::memcmp(bits.data(), expected.data() + 41 * 64, 64 * 4) == 0);
  }
}

}  // namespace
}  // namespace eventide
