// The plan task as a test: random steps, and what its tables must hold.
#pragma once

#include <set>
#include <vector>

#include "ops/plan.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

struct PlanShape {
  int head_dim = 64, kv_heads = 2, group = 3, window = 0;
  int max_rows = 40, max_tokens = 600;
  int max_partials = 100000, max_groups = 1000, max_outputs = 700;
  int part_tokens = 128;
  int spare_items = 1000;  // beyond what unsplit tiles need
  int long_tokens = -1;    // Plan::Params; -1: no row has large tiles
  int long_rows = 0;       // of a tile, then, on the backend
};

struct Planned {
  std::vector<i32> row_start, token_row, row_output, output_token, counts;
  std::vector<AttentionItem> items;
};

inline Planned RunPlan(const OpBackend& backend, const PlanShape& s, OpStep step) {
  OpRig rig("plan");
  const int max_items =
      MinAttentionItems(s.max_rows, s.max_tokens, s.head_dim, s.group, 2) + s.spare_items;
  const TensorId start = rig.Output<i32>("row_start", s.max_rows + 1);
  const TensorId row = rig.Output<i32>("token_row", s.max_tokens);
  const TensorId output = rig.Output<i32>("row_output", s.max_rows);
  const TensorId token = rig.Output<i32>("output_token", s.max_outputs);
  const TensorId items = rig.Output<i32>("items", static_cast<size_t>(max_items) * (sizeof(AttentionItem) / 4));
  const TensorId counts = rig.Output<i32>("counts", kStepCounts);
  rig.graph().Call<Plan>("plan", {start, row, output, token, items, counts},
                         {s.head_dim, s.kv_heads, s.group, s.window, max_items, s.max_partials,
                          s.max_groups, s.max_outputs, s.part_tokens, std::max(s.long_tokens, 0),
                          DimRef{-1, s.long_tokens >= 0}},
                         {1}, Storage<BF16>::kVariant);
  rig.Start(backend);
  step.Upload(rig);
  rig.Step(step.Header(rig));
  Planned p{rig.Get<i32>(start), rig.Get<i32>(row),    rig.Get<i32>(output),
            rig.Get<i32>(token), rig.Get<i32>(counts), {}};
  const std::vector<i32> raw = rig.Get<i32>(items);
  REQUIRE(p.counts[kCountItems] <= max_items);
  p.items.resize(p.counts[kCountItems]);
  if (!p.items.empty()) std::memcpy(p.items.data(), raw.data(), p.items.size() * sizeof(AttentionItem));
  return p;
}

inline void CheckTables(const Planned& p, const OpStep& step) {
  std::vector<i32> token_row, output_token;
  for (size_t r = 0; r < step.rows.size(); ++r) {
    const Row& row = step.rows[r];
    const i32 first = static_cast<i32>(token_row.size()), length = step.Length(row);
    CHECK(p.row_start[r] == first);
    for (i32 i = 0; i < length; ++i) token_row.push_back(static_cast<i32>(r));
    i32 wanted = std::min(length, row.sampling & kRowSample ? 1 : 0);
    const bool checks = row.query_length == kDeviceKnows && !(row.sampling & kRowKnown);
    if (row.sampling & kRowAllLogits || (wanted > 0 && checks)) {
      wanted = length;
    }
    CHECK(p.row_output[r] == (wanted > 0 ? static_cast<i32>(output_token.size()) : -1));
    for (i32 i = length - wanted; i < length; ++i) output_token.push_back(first + i);
  }
  const i32 tokens = static_cast<i32>(token_row.size());
  CHECK(p.row_start[step.rows.size()] == tokens);
  CHECK(p.counts[kCountTokens] == tokens);
  CHECK(p.counts[kCountOutputs] == static_cast<i32>(output_token.size()));
  CHECK(std::equal(token_row.begin(), token_row.end(), p.token_row.begin()));
  CHECK(std::equal(output_token.begin(), output_token.end(), p.output_token.begin()));
  for (size_t i = tokens; i < p.token_row.size(); ++i) REQUIRE(p.token_row[i] == -1);
}

// Every (row, query token) in one tile, every tile's visible chunks in its parts once and in order,
// and no partial slot used twice.
inline void CheckItems(const Planned& p, const OpStep& step, const PlanShape& s) {
  std::vector<std::vector<int>> covered(step.rows.size());
  for (size_t r = 0; r < step.rows.size(); ++r) covered[r].resize(step.Length(step.rows[r]));
  std::set<i32> groups, slots;
  for (size_t i = 0; i < p.items.size();) {
    const AttentionItem& head = p.items[i];
    const Row& row = step.rows.at(head.row);
    const i32 context = static_cast<i32>(step.slots[row.slot].context_length);
    REQUIRE(head.part == 0);
    REQUIRE(head.q_count > 0);
    const i32 length = static_cast<i32>(step.Length(row));
    if (s.long_tokens < 0 || length < s.long_tokens) REQUIRE(head.appended == 0);
    if (s.long_tokens > 0 && length >= s.long_tokens && context <= Plan::LongContext(length - s.long_tokens)) {
      REQUIRE(head.appended == 1);
    }
    if (head.appended) REQUIRE(head.parts == 1);
    const i32 rows = head.appended ? s.long_rows / AttentionHeads(s.head_dim, s.group, 2) : 0;
    REQUIRE(head.q_count <= std::max(rows, AttentionTile(s.head_dim, s.group, 2)));
    for (i32 q = 0; q < head.q_count; ++q) ++covered[head.row].at(head.q_first + q);
    const i32 low = s.window ? std::max(0, context + head.q_first - s.window + 1) : 0;
    const i32 last = context + head.q_first + head.q_count - 1;
    i32 chunk = ChunkOf(low), order = 0;
    if (head.parts > 1) {
      REQUIRE(groups.insert(head.group).second);
      REQUIRE(head.group < s.max_groups);
    }
    for (i32 part = 0; part < head.parts; ++part, ++i) {
      const AttentionItem& item = p.items.at(i);
      REQUIRE(item.row == head.row);
      REQUIRE(item.q_first == head.q_first);
      REQUIRE(item.part == part);
      REQUIRE(item.appended == head.appended);
      REQUIRE(item.parts == head.parts);
      REQUIRE(item.chunk_first == chunk);
      REQUIRE(item.chunk_end >= chunk);
      if (part == 0) REQUIRE(item.chunk_end > chunk);
      REQUIRE(item.first_order == order);
      chunk = item.chunk_end;
      const i32 orders = part == 0 ? 1 : item.chunk_end - item.chunk_first;
      for (i32 k = 0; k < orders * item.q_count && head.parts > 1; ++k) {
        const i32 slot = item.partial_base + order * item.q_count + k;
        REQUIRE(slots.insert(slot).second);
        REQUIRE(slot < s.max_partials);
      }
      order += orders;
    }
    REQUIRE(chunk == ChunkOf(last) + 1);
  }
  for (const std::vector<int>& row : covered) {
    for (const int count : row) REQUIRE(count == 1);
  }
}

inline OpStep RandomStep(RandomValues& random, int rows, int max_tokens, int max_context) {
  OpStep step;
  step.slots.resize(rows + 1);
  int left = max_tokens - rows;  // every row may decode
  for (int r = 0; r < rows; ++r) {
    SlotState& slot = step.slots[r + 1];
    slot.context_length =
        static_cast<u32>(random.Below(2) ? random.Below(300) : random.Below(max_context));
    slot.pace = random.Below(5) ? 0 : kPaceEnded;
    Row row{static_cast<u32>(r + 1), kDeviceKnows, 0, static_cast<u32>(random.Below(3))};
    if (slot.pace == 0 && left > 32) {
      // As many drafts as the slot has, or as the row may carry.
      slot.pace = static_cast<u64>(random.Below(kMaxDraftTokens + 1));
      row.draft_length = static_cast<u32>(random.Below(kMaxDraftTokens + 1));
      left -= static_cast<int>(std::min<u64>(slot.pace, row.draft_length));
    }
    if (random.Below(4) == 0) row.sampling |= kRowKnown;
    if (random.Below(3) == 0) row.query_length = static_cast<u32>(random.Below(left / 3 + 1));
    if (row.query_length != kDeviceKnows) left -= static_cast<int>(row.query_length);
    step.rows.push_back(row);
  }
  return step;
}

inline void CheckPlan(const OpBackend& backend, const PlanShape& shape, const OpStep& step) {
  const Planned p = RunPlan(backend, shape, step);
  CheckTables(p, step);
  CheckItems(p, step, shape);
}

}  // namespace eventide
