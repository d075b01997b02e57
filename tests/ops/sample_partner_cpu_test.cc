// A sequence of two models: what a step of one leaves in the other's slot.
#include "tests/ops/sample_case.h"

namespace eventide {
namespace {

constexpr int kVocab = 40;

// Token `next` follows with certainty.
std::vector<float> Certain(i32 next) {
  std::vector<float> logits(kVocab, 0.0f);
  logits[static_cast<size_t>(next)] = 5.0f;
  return logits;
}

// Of `drafts`, the first `right` are what follows; the draft model has KV of all but the last.
SampleRow Verifies(u32 drafts, u32 right) {
  constexpr u32 kLength = 9;
  SampleRow row;
  row.logits = Certain(1);
  for (u32 i = 0; i < drafts; ++i) {
    row.drafts.push_back(static_cast<i32>(i < right ? i + 1 : 0));
    row.more.push_back(Certain(static_cast<i32>(i + 2)));
  }
  row.slot.history_length = kLength;
  row.slot.context_length = kLength - 1;
  row.slot.max_length = 60;
  row.slot.role = kSlotVerifies;
  SlotState partner = {};
  partner.history_length = kLength + drafts;
  partner.context_length = drafts > 0 ? kLength + drafts - 1 : kLength;
  partner.max_length = 60;
  partner.role = kSlotDrafts;
  partner.finish = kSlotLength;  // may have drafted up to its limit
  row.partner = partner;
  return row;
}

TEST_CASE("a checked step puts the draft model's slot where the right drafts end") {
  for (const OpBackend& backend : HostBackends()) {
    INFO(backend.name);
    std::vector<SampleRow> rows;
    std::vector<u32> rights;
    for (u32 drafts = 0; drafts <= kMaxDraftTokens; ++drafts) {
      for (u32 right = 0; right <= drafts; ++right) {
        rows.push_back(Verifies(drafts, right));
        rights.push_back(right);
      }
    }
    SampleCase sample(backend, rows);
    sample.Run();
    const std::vector<SlotState> partners = sample.Partners();
    for (size_t r = 0; r < rows.size(); ++r) {
      const u32 drafts = static_cast<u32>(rows[r].drafts.size());
      INFO(rights[r] << " of " << drafts << " right");
      const u32 length = 9 + rights[r] + 1;
      // Without KV is the last token, and the last draft if all were right.
      const u32 behind = drafts > 0 && rights[r] == drafts ? 2 : 1;
      CHECK(partners[r].history_length == length);
      CHECK(partners[r].context_length == length - behind);
      CHECK(partners[r].finish == kSlotRunning);
      CHECK(PaceOf(partners[r].pace, 0) == behind - 1);
      CHECK(PaceOf(partners[r].pace, 77) == behind - 1);
    }
  }
}

TEST_CASE("a sequence that has ended, or has outgrown the draft model, takes no more of its steps") {
  const OpBackend cpu{"cpu", BestCpuIsa(), 2, "static"};
  std::vector<SampleRow> rows(5, Verifies(3, 3));  // has 13 tokens afterwards
  rows[0].slot.max_length = 13;
  rows[1].slot.stop_count = 1;
  rows[1].slot.stop_tokens[0] = 2;
  rows[2].partner->max_length = 13;
  rows[3].partner->max_length = 14;
  rows[4].query_length = 0;  // takes no part itself
  SampleCase sample(cpu, rows);
  sample.Run();
  const std::vector<SlotState> partners = sample.Partners();
  for (size_t r = 0; r < 3; ++r) {
    INFO(r);
    CHECK(PaceOf(partners[r].pace, 0) == kPaceEnded);
    CHECK(partners[r].finish == kSlotLength);
  }
  CHECK(PaceOf(partners[3].pace, 0) == 1);
  CHECK(partners[3].finish == kSlotRunning);
  CHECK(std::memcmp(&partners[4], &*rows[4].partner, sizeof(SlotState)) == 0);
}

TEST_CASE("a draft model's row draws from its last token alone, and counts as its partner's draft") {
  for (const OpBackend& backend : HostBackends()) {
    INFO(backend.name);
    for (const u32 known : {1u, 2u}) {
      for (const u32 room : {1u, 2u, 3u, 40u}) {  // tokens that the partner may still have
        SampleRow row;
        row.logits = Certain(7);
        row.sampling = kRowSample | kRowKnown;
        row.slot.history_length = 11;  // one of them a draft
        row.slot.context_length = 11 - known;
        row.slot.pace = known - 1;
        row.slot.role = kSlotDrafts;
        row.partner = SlotState{};
        row.partner->role = kSlotVerifies;
        row.partner->history_length = 10;
        row.partner->max_length = 10 + room;
        SampleRow silent = row;  // only brings KV
        silent.sampling = kRowKnown;
        SampleCase sample(backend, {row, silent});
        const std::vector<StepResult> results = sample.Run();
        const std::vector<SlotState> slots = sample.Slots(), partners = sample.Partners();
        INFO(known << " known, room for " << room);
        CHECK(results[0].count == 1);
        CHECK(results[0].query_length == known);
        CHECK(slots[0].history_length == 12);
        CHECK(slots[0].context_length == 11);
        CHECK(sample.History(0)[11] == 7);
        CHECK(PaceOf(slots[0].pace, 0) == known - 1);
        CHECK(PaceOf(slots[0].pace, 1) == 0);
        // A draft is followed by another token.
        CHECK(PaceOf(partners[0].pace, 0) == std::min(2u, room - 1));
        CHECK(results[1].count == 0);
        CHECK(slots[1].history_length == 11);
        CHECK(slots[1].context_length == 11);
        CHECK(sample.History(1)[11] == -7);
        CHECK(partners[1].pace == 0);
      }
    }
  }
}

TEST_CASE("a draft model without a number to draw leaves its partner the drafts that it has, and no others") {
  for (const OpBackend& backend : HostBackends()) {
    INFO(backend.name);
    for (const u32 drafts : {0u, 1u, 5u}) {
      SampleRow row;
      row.logits = std::vector<float>(kVocab, NAN);
      row.sampling = kRowSample | kRowKnown;
      row.slot.history_length = 10 + drafts;
      row.slot.context_length = 9 + drafts;
      row.slot.role = kSlotDrafts;
      row.partner = SlotState{};
      row.partner->role = kSlotVerifies;
      row.partner->history_length = 10;
      row.partner->max_length = 60;
      SampleCase sample(backend, {row});
      CHECK(sample.Run()[0].count == 0);
      CHECK(sample.Slots()[0].finish == kSlotNoNumber);
      CHECK(sample.Slots()[0].history_length == 10 + drafts);
      CHECK(PaceOf(sample.Slots()[0].pace, 1) == kPaceEnded);
      CHECK(PaceOf(sample.Partners()[0].pace, 0) == drafts);
      CHECK(sample.Partners()[0].finish == kSlotRunning);
    }
  }
}

}  // namespace
}  // namespace eventide
