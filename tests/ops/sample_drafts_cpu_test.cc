// Rows with drafts: which are accepted, what a sequence's end in the midst of them leaves, and what is
// drafted next. The drafts are forced; what must come out follows token by token from the same draws without
// drafts.
#include "tests/ops/sample_case.h"

namespace eventide {
namespace {

constexpr int kVocab = 70;
constexpr u32 kKnown = 5;  // tokens of a history before the step

// Logits by position, and what is drawn from them one at a time.
struct Truth {
  std::vector<std::vector<float>> logits;
  std::vector<i32> tokens;
};

SampleRow Plain(const Truth& truth, const SlotState& slot) {
  SampleRow row;
  row.logits = truth.logits[0];
  row.slot = slot;
  row.slot.history_length = kKnown;
  row.slot.context_length = kKnown - 1;
  row.slot.prompt_length = kKnown;
  row.known = {1, 2, 3, 4, 5};
  return row;
}

Truth MakeTruth(const OpBackend& backend, const SlotState& slot, u64 seed) {
  RandomValues random(seed);
  Truth truth;
  for (u32 i = 0; i <= kMaxDraftTokens; ++i) {
    std::vector<float> logits(kVocab);
    for (float& v : logits) v = static_cast<float>(random.Normal(1.5));
    truth.logits.push_back(logits);
    SampleRow row = Plain(truth, slot);
    row.logits = logits;
    row.slot.history_length = kKnown + i;
    truth.tokens.push_back(SampleCase(backend, {row}).Run()[0].tokens[0]);
  }
  return truth;
}

// `wrong`: the first draft that is not what will be drawn; its followers are right again, which must not
// help them.
SampleRow WithDrafts(const Truth& truth, const SlotState& slot, u32 drafts, u32 wrong) {
  SampleRow row = Plain(truth, slot);
  for (u32 i = 0; i < drafts; ++i) {
    row.drafts.push_back(i == wrong ? (truth.tokens[i] + 1) % kVocab : truth.tokens[i]);
    row.more.push_back(truth.logits[i + 1]);
  }
  return row;
}

// What the same sequence leaves when it goes token by token.
struct Expected {
  u32 count = 0, accepted = 0, finish = kSlotRunning;
};
Expected TokenByToken(const Truth& truth, const SampleRow& row, u32 wrong) {
  Expected e;
  const u32 drafts = static_cast<u32>(row.drafts.size());
  while (e.count <= std::min(drafts, wrong) && e.finish == kSlotRunning) {
    const i32 token = truth.tokens[e.count];
    e.accepted += e.count < std::min(drafts, wrong);
    const u32 length = kKnown + ++e.count;
    if (length >= row.slot.max_length && row.slot.max_length > 0) e.finish = kSlotLength;
    for (u32 s = 0; s < row.slot.stop_count; ++s) {
      if (length >= row.slot.min_length && row.slot.stop_tokens[s] == token) {
        e.finish = kSlotStopped;
      }
    }
  }
  return e;
}

void CheckRow(const Truth& truth, const SampleRow& row, u32 wrong, const StepResult& result,
              const SlotState& slot, const std::vector<i32>& history) {
  const Expected e = TokenByToken(truth, row, wrong);
  const u32 drafts = static_cast<u32>(row.drafts.size());
  INFO(drafts << " drafts, " << wrong << " wrong, maximum " << row.slot.max_length << ", "
              << row.slot.stop_count << " stops");
  REQUIRE(result.count == e.count);
  CHECK(result.accepted == e.accepted);
  CHECK(result.finish == e.finish);
  CHECK(result.query_length == 1 + drafts);
  CHECK(slot.finish == e.finish);
  CHECK(slot.history_length == kKnown + e.count);
  CHECK(slot.context_length == kKnown + e.count - 1);
  const u32 next = PaceOf(slot.pace, 1000), now = PaceOf(slot.pace, 0);
  CHECK((next & kPaceEnded) == (e.finish == kSlotRunning ? 0u : kPaceEnded));
  CHECK(now == drafts);
  for (u32 i = 0; i < e.count; ++i) {
    CHECK(result.tokens[i] == truth.tokens[i]);
    CHECK(history[kKnown + i] == truth.tokens[i]);
  }
}

// Every number of drafts with the first wrong one at every place, all in one step.
void CheckAll(const OpBackend& backend, const Truth& truth, const SlotState& slot) {
  std::vector<SampleRow> rows;
  std::vector<u32> wrongs;
  for (u32 drafts = 0; drafts <= kMaxDraftTokens; ++drafts) {
    for (u32 wrong = 0; wrong <= drafts; ++wrong) {
      rows.push_back(WithDrafts(truth, slot, drafts, wrong));
      wrongs.push_back(wrong);
    }
  }
  SampleCase sample(backend, rows);
  const std::vector<StepResult> results = sample.Run();
  const std::vector<SlotState> slots = sample.Slots();
  for (size_t r = 0; r < rows.size(); ++r) {
    CheckRow(truth, rows[r], wrongs[r], results[r], slots[r], sample.History(static_cast<int>(r)));
  }
}

SlotState Sampling(float temperature, u32 top_k, float top_p) {
  SlotState slot = {};
  slot.temperature = temperature;
  slot.top_k = top_k;
  slot.top_p = top_p;
  slot.key = 99;
  return slot;
}

TEST_CASE("drafts are accepted up to the first that is not what would be drawn, any number of them") {
  for (const OpBackend& backend : HostBackends()) {
    INFO(backend.name);
    for (const SlotState& slot : {Sampling(0, 0, 1.0f), Sampling(0.8f, 0, 1.0f),
                                  Sampling(1.0f, 20, 0.9f)}) {
      CheckAll(backend, MakeTruth(backend, slot, 3), slot);
    }
  }
}

TEST_CASE("stop tokens and length limits end a sequence in the midst of right drafts") {
  const OpBackend cpu{"cpu", BestCpuIsa(), 2, "static"};
  const SlotState plain = Sampling(0.7f, 0, 0.95f);
  const Truth truth = MakeTruth(cpu, plain, 4);
  for (u32 at = 0; at <= kMaxDraftTokens; ++at) {
    SlotState slot = plain;
    slot.max_length = kKnown + at + 1;
    // A slot never holds drafts beyond its length: here the limit is where they end.
    std::vector<SampleRow> rows;
    std::vector<u32> wrongs;
    for (u32 wrong = 0; wrong <= at; ++wrong) {
      rows.push_back(WithDrafts(truth, slot, at, wrong));
      wrongs.push_back(wrong);
    }
    for (const u32 min_length : {0u, kKnown + at + 1, kKnown + at + 2}) {
      slot = plain;
      slot.stop_count = 2;
      slot.stop_tokens[0] = -5;
      slot.stop_tokens[1] = truth.tokens[at];
      slot.min_length = min_length;
      rows.push_back(WithDrafts(truth, slot, kMaxDraftTokens, kMaxDraftTokens));
      wrongs.push_back(kMaxDraftTokens);
    }
    SampleCase sample(cpu, rows);
    const std::vector<StepResult> results = sample.Run();
    const std::vector<SlotState> slots = sample.Slots();
    for (size_t r = 0; r < rows.size(); ++r) {
      CheckRow(truth, rows[r], wrongs[r], results[r], slots[r],
               sample.History(static_cast<int>(r)));
    }
  }
}

// The drafts that a plain reading of ops/draft.h gives for a history.
std::vector<i32> LookUp(const std::vector<i32>& history, size_t most) {
  const size_t n = history.size();
  size_t best = 0, back = 0;
  for (size_t b = 1; b < n; ++b) {
    size_t same = 0;
    while (same < static_cast<size_t>(Lookup::kMaxMatch) && same + b < n &&
           history[n - 1 - same] == history[n - 1 - same - b]) {
      ++same;
    }
    if (same > best) best = same, back = b;
  }
  std::vector<i32> text = history;
  for (size_t i = 0; i < std::min(most, 2 * best); ++i) text.push_back(text[text.size() - back]);
  return {text.begin() + static_cast<long>(n), text.end()};
}

TEST_CASE("what followed the longest, then latest, earlier match of the last tokens is drafted") {
  RandomValues random(21);
  int drafted = 0, none = 0, periodic = 0;
  const std::vector<OpBackend> backends = HostBackends();
  for (int trial = 0; trial < 300; ++trial) {
    const int alphabet = random.Between(2, 12);
    std::vector<float> logits(kVocab, 0.0f);
    const i32 next = random.Below(alphabet);
    logits[next] = 3.0f;
    SampleRow row = Sampled(logits, 0, 0, 1.0f);
    const int length = random.Between(1, 40);
    for (int i = 0; i < length; ++i) row.known.push_back(random.Below(alphabet));
    row.slot.history_length = static_cast<u32>(length);
    row.slot.context_length = static_cast<u32>(length - 1);
    row.slot.draft_limit = static_cast<u16>(random.Below(kMaxDraftTokens + 1));
    row.slot.max_length = static_cast<u32>(random.Between(length + 1, length + 20));
    SampleCase sample(backends[static_cast<size_t>(trial) % backends.size()], {row});
    sample.Run();
    const SlotState slot = sample.Slots()[0];
    const std::vector<i32> history = sample.History(0);
    std::vector<i32> known = row.known;
    known.push_back(next);
    // No draft where its KV would be behind all that the sequence may have.
    const bool ends = slot.finish != kSlotRunning;
    const size_t room = row.slot.max_length - known.size();
    const size_t most = ends ? 0 : std::min<size_t>(row.slot.draft_limit, room - 1);
    const std::vector<i32> expected = most == 0 ? std::vector<i32>() : LookUp(known, most);
    INFO("trial " << trial);
    REQUIRE(PaceOf(slot.pace, 1000) == (ends ? kPaceEnded : static_cast<u32>(expected.size())));
    REQUIRE(std::vector<i32>(history.begin(), history.begin() + static_cast<long>(known.size())) ==
            known);
    for (size_t i = 0; i < expected.size(); ++i) REQUIRE(history[known.size() + i] == expected[i]);
    REQUIRE(history[known.size() + expected.size()] == -7);
    REQUIRE(slot.draft_length == 0);
    drafted += !expected.empty();
    none += expected.empty();
    periodic += expected.size() > 3 && expected[0] == expected[2] && expected[1] == expected[3];
  }
  CHECK(drafted > 80);
  CHECK(none > 20);
  CHECK(periodic > 5);
}

TEST_CASE("a row that adapts may have two drafts more where all were right, and one fewer where one was wrong") {
  const std::vector<OpBackend> backends = HostBackends();
  for (const OpBackend& backend : backends) {
    SlotState slot = Sampling(0, 0, 1.0f);
    slot.max_length = 200;
    Truth truth = MakeTruth(backend, slot, 3);
    for (const u16 limit : {1, 2, 7, 16}) {
      for (u16 length = 1; length <= limit; ++length) {
        std::vector<SampleRow> rows;
        std::vector<int> expected;
        slot.draft_limit = limit;
        slot.draft_length = length;
        for (u32 drafts = 0; drafts <= length; ++drafts) {
          for (u32 wrong = 0; wrong <= drafts; ++wrong) {
            rows.push_back(WithDrafts(truth, slot, drafts, wrong));
            expected.push_back(drafts == 0       ? length
                               : wrong == drafts ? std::min(length + 2, int{limit})
                                                 : std::max(length - 1, 1));
          }
        }
        SampleCase sample(backend, rows);
        sample.Run();
        const std::vector<SlotState> slots = sample.Slots();
        for (size_t r = 0; r < rows.size(); ++r) {
          INFO(backend.name << ": " << length << " of " << limit << ", row " << r);
          CHECK(slots[r].draft_length == expected[r]);
          CHECK(PaceOf(slots[r].pace, 1000) <= slots[r].draft_length);
        }
      }
    }
  }
}

TEST_CASE("no more is drafted than the row's length allows, though its tokens repeat themselves") {
  std::vector<float> logits(kVocab, 0.0f);
  logits[5] = 3.0f;
  for (const u16 length : {1, 3, 9}) {
    SampleRow row = Sampled(logits, 0, 0, 1.0f);
    row.known = std::vector<i32>(30, 5);
    row.slot.history_length = 30;
    row.slot.context_length = 29;
    row.slot.max_length = 100;
    row.slot.draft_limit = 12;
    row.slot.draft_length = length;
    SampleCase sample(HostBackends()[0], {row});
    sample.Run();
    CHECK(PaceOf(sample.Slots()[0].pace, 1000) == length);
  }
}

}  // namespace
}  // namespace eventide
