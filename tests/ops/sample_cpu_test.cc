// Sampling: greedy, the supports of top-k and top-p, exact frequencies, and the end-of-sequence
// rules.
#include "tests/ops/sample_case.h"

namespace eventide {
namespace {

const OpBackend kCpu{"cpu", BestCpuIsa(), 1, "static"};

TEST_CASE("sampled frequencies match exact probabilities over 100,000 draws") {
  RandomValues random(5);
  std::vector<float> logits(257);
  for (float& v : logits) v = static_cast<float>(random.Normal(2.0));
  struct Setting {
    float temperature;
    u32 top_k;
    float top_p;
  };
  for (const Setting& s : {Setting{1.0f, 0, 1.0f}, Setting{0.7f, 40, 0.9f}, Setting{1.5f, 0, 0.8f},
                           Setting{1.0f, 7, 1.0f}}) {
    INFO(s.temperature << " " << s.top_k << " " << s.top_p);
    const SampleRow row = Sampled(logits, s.temperature, s.top_k, s.top_p);
    const int draws = 25000;
    CHECK(ChiSquare(Draws(kCpu, row, draws), Exact(row), draws) < 4.0);
  }
}

TEST_CASE("sampled frequencies match exact probabilities over 1,200,000 draws on small vocabularies") {
  RandomValues random(17);
  for (const int vocab : {2, 5, 33}) {
    std::vector<float> logits(vocab);
    for (float& v : logits) v = static_cast<float>(random.Normal(1.0));
    for (const SampleRow& row :
         {Sampled(logits, 1.0f, 0, 1.0f), Sampled(logits, 0.6f, 0, 0.7f),
          Sampled(logits, 2.0f, vocab / 2 + 1, 1.0f), Sampled(logits, 1.3f, vocab - 1, 0.85f)}) {
      INFO(vocab << " " << row.slot.temperature << " " << row.slot.top_k << " " << row.slot.top_p);
      const int draws = 100000;
      CHECK(ChiSquare(Draws(kCpu, row, draws), Exact(row), draws) < 4.0);
    }
  }
}

TEST_CASE("a wrong temperature would be noticed: the frequency test has power") {
  RandomValues random(5);
  std::vector<float> logits(257);
  for (float& v : logits) v = static_cast<float>(random.Normal(2.0));
  const int draws = 25000;
  CHECK(ChiSquare(Draws(kCpu, Sampled(logits, 1.06f, 0, 1.0f), draws),
                  Exact(Sampled(logits, 1.0f, 0, 1.0f)), draws) > 4.0);
}

TEST_CASE("ties at the boundary of top-k and top-p go to the lower ids, never one too many") {
  const std::vector<float> tied = Logs({0.4, 0.3, 0.3, 1e-30});
  CHECK(Support(kCpu, Sampled(tied, 1, 2, 1.0f)) == std::set<int>{0, 1});
  CHECK(Support(kCpu, Sampled(tied, 1, 0, 0.7f)) == std::set<int>{0, 1});
  CHECK(Support(kCpu, Sampled(tied, 1, 0, 0.71f)) == std::set<int>{0, 1, 2});
  const std::vector<float> equal(100, 1.5f);
  CHECK(Support(kCpu, Sampled(equal, 1, 3, 1.0f)) == std::set<int>{0, 1, 2});
  CHECK(Support(kCpu, Sampled(equal, 1, 0, 0.045f)) == std::set<int>{0, 1, 2, 3, 4});
  CHECK(Support(kCpu, Sampled({0.0f, -0.0f, -5.0f}, 1, 1, 1.0f)) == std::set<int>{0});
}

TEST_CASE("extreme settings keep at least one token and stay inside the vocabulary") {
  const std::vector<float> logits = Logs({0.2, 0.5, 0.3});
  CHECK(Support(kCpu, Sampled(logits, 0.01f, 1, 0.8f)) == std::set<int>{1});
  CHECK(Support(kCpu, Sampled(logits, 1, 0, 0.0f)) == std::set<int>{1});
  CHECK(Support(kCpu, Sampled(logits, 1, 1u << 31, 1.0f)) == std::set<int>{0, 1, 2});
  CHECK(Support(kCpu, Sampled(logits, 1e-20f, 0, 1.0f)) == std::set<int>{1});
  CHECK(Support(kCpu, Sampled({-INFINITY, -INFINITY, 3.0f}, 1, 0, 1.0f)) == std::set<int>{2});
  CHECK(Support(kCpu, Sampled({INFINITY, 2.0f, INFINITY}, 1, 0, 1.0f)) == std::set<int>{0, 2});
}

TEST_CASE("NaN logits are lowest and never drawn") {
  CHECK(Support(kCpu, Sampled({NAN, 1.0f, NAN, 1.0f}, 1, 3, 1.0f)) == std::set<int>{1, 3});
  CHECK(Support(kCpu, Sampled({NAN, 1.0f, NAN, 1.0f}, 1, 0, 0.99f)) == std::set<int>{1, 3});
  CHECK(Support(kCpu, Sampled({NAN, -INFINITY, NAN}, 0, 0, 1.0f), 2) == std::set<int>{1});
}

TEST_CASE("without any number nothing is drawn and the sequence ends") {
  CheckNoNumber(kCpu);
}

TEST_CASE("supports equal the exact ones for random logits, vocabularies around tiles") {
  RandomValues random(9);
  for (const int vocab : {1, 2, 31, 32, 33, 2047, 2049, 5000}) {
    for (int trial = 0; trial < 4; ++trial) {
      std::vector<float> logits(vocab);
      // Coarse values: many ties.
      for (float& v : logits) v = std::round(static_cast<float>(random.Normal(2.0)) * 4) / 4;
      SampleRow row = Sampled(logits, 0.5f + trial, trial % 2 ? random.Between(1, vocab) : 0,
                              trial / 2 ? 0.05f + 0.9f * random.Below(100) / 100 : 1.0f);
      const std::vector<double> exact = Exact(row);
      for (const int id : Support(kCpu, row, 500)) CHECK(exact[id] > 0);
    }
  }
}

TEST_CASE("greedy takes the largest logit, the lower id of equals, across tiles") {
  RandomValues random(11);
  for (const OpBackend& backend : HostBackends()) {
    INFO(backend.name);
    for (const int vocab : {1, 32, 33, 257, 9000}) {
      std::vector<SampleRow> rows;
      std::vector<int> expected;
      for (int r = 0; r < 6; ++r) {
        std::vector<float> logits(vocab);
        for (float& v : logits) v = std::round(static_cast<float>(random.Normal(1.0)) * 2);
        expected.push_back(
            static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
        rows.push_back(Sampled(logits, 0, 0, 1.0f));
      }
      SampleCase sample(backend, rows);
      const std::vector<StepResult> results = sample.Run();
      for (int r = 0; r < 6; ++r) CHECK(results[r].tokens[0] == expected[r]);
    }
  }
}

TEST_CASE(
    "a draw depends on key, position and logits alone: the same alone, in a batch, on any "
    "backend") {
  RandomValues random(13);
  std::vector<SampleRow> rows;
  for (int r = 0; r < 12; ++r) {
    std::vector<float> logits(3000);
    for (float& v : logits) v = static_cast<float>(random.Normal(1.0));
    rows.push_back(Sampled(logits, 1.0f, r % 3 ? 500 : 0, r % 2 ? 0.9f : 1.0f, 77 + r % 2));
    rows.back().slot.history_length = static_cast<u32>(r % 4);
  }
  SampleCase together(kCpu, rows);
  const std::vector<StepResult> expected = together.Run();
  std::set<int> distinct;
  for (const OpBackend& backend : HostBackends()) {
    INFO(backend.name);
    for (int r = 0; r < 12; ++r) {
      SampleCase alone(backend, {rows[r]});
      CHECK(alone.Run()[0].tokens[0] == expected[r].tokens[0]);
      distinct.insert(expected[r].tokens[0]);
    }
  }
  CHECK(distinct.size() > 8);
}

TEST_CASE("slots advance, stop and end as their limits say") {
  const std::vector<float> two = {0, 0, 5, 0};  // greedy: id 2
  SampleRow plain = Sampled(two, 0, 0, 1.0f);
  plain.slot.history_length = 3;
  plain.slot.context_length = 2;
  plain.slot.prompt_length = 3;
  SampleRow stop = plain;
  stop.slot.stop_count = 2;
  stop.slot.stop_tokens[0] = 9;
  stop.slot.stop_tokens[1] = 2;
  SampleRow too_short = stop;
  too_short.slot.min_length = 5;
  SampleRow just_long_enough = stop;
  just_long_enough.slot.min_length = 4;
  SampleRow full = plain;
  full.slot.max_length = 4;
  SampleRow prefill = plain;
  prefill.sampling = kRowNone;
  prefill.query_length = 2;
  SampleRow finished = plain;
  finished.slot.finish = kSlotStopped;
  finished.slot.pace = kPaceEnded;
  SampleCase sample(kCpu, {plain, stop, too_short, just_long_enough, full, prefill, finished});
  const std::vector<StepResult> results = sample.Run();
  const std::vector<SlotState> slots = sample.Slots();
  const u32 finish[] = {kSlotRunning, kSlotStopped, kSlotRunning, kSlotStopped,
                        kSlotLength,  kSlotRunning, kSlotStopped};
  for (int r = 0; r < 7; ++r) {
    INFO("row " << r);
    const bool appends = r < 5;
    CHECK(results[r].slot == static_cast<u32>(r));
    CHECK(results[r].count == (appends ? 1u : 0u));
    if (appends) CHECK(results[r].tokens[0] == 2);
    CHECK(results[r].accepted == 0);
    CHECK(results[r].query_length == (r == 5 ? 2u : r == 6 ? 0u : 1u));
    CHECK(results[r].finish == finish[r]);
    CHECK(slots[r].finish == finish[r]);
    CHECK(slots[r].history_length == (appends ? 4u : 3u));
    CHECK(slots[r].context_length == (r == 5 ? 4u : r == 6 ? 2u : 3u));
    CHECK(sample.History(r)[3] == (appends ? 2 : -7));
    CHECK(sample.History(r)[4] == -7);
  }
}

}  // namespace
}  // namespace eventide
