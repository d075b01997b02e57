// The rows that leave at a point of early exit as a test: random steps, and slow tables.
#pragma once

#include "ops/exit_rows.h"
#include "tests/ops/op_rig.h"
#include "tests/ops/values.h"

namespace eventide {

// A step of random rows at its second point: some rows have left, some tokens are decided.
inline void CheckExitRows(const OpBackend& backend, int rows, uint64_t seed) {
  INFO(backend.name << ": " << rows << " rows, seed " << seed);
  RandomValues random(seed * 1000 + static_cast<uint64_t>(rows));
  OpStep step;
  std::vector<i32> row_start = {0}, row_place, decided, origin;  // origin: of each token that is here
  step.slots.resize(static_cast<size_t>(rows));
  int left = 0;
  std::vector<i32> place_of;  // of each of the step's tokens, before
  for (int r = 0; r < rows; ++r) {
    const int length = random.Below(4) == 0 ? random.Below(seed % 2 ? 700 : 9) : 1;
    row_start.push_back(row_start.back() + length);
    const u32 slot = static_cast<u32>(rows - 1 - r);
    step.rows.push_back({slot, static_cast<u32>(length), 0, 0});
    step.slots[slot].context_length = static_cast<u32>(3 * r + 1);
    const bool gone = random.Below(4) == 0;
    row_place.push_back(gone ? -1 : static_cast<i32>(origin.size()));
    const int mood = random.Below(3);  // all decided, some, none
    for (int i = 0; i < length; ++i) {
      if (gone) {
        place_of.push_back(-1 - left++);
        continue;
      }
      place_of.push_back(static_cast<i32>(origin.size()));
      origin.push_back(row_start[static_cast<size_t>(r)] + i);
      decided.push_back(mood == 0 || (mood == 1 && random.Below(2)));
    }
  }
  const int tokens = row_start.back(), here = static_cast<int>(origin.size());
  for (i32& place : place_of) {
    if (place < 0) place = tokens - 1 - place;
  }
  std::vector<AttentionItem> items;
  for (int r = 0; r < rows; ++r) {
    if (row_place[static_cast<size_t>(r)] < 0) continue;
    for (int part = 0; part < 1 + random.Below(3); ++part) {
      AttentionItem item = {};
      item.row = r;
      item.part = part;
      item.group = static_cast<i32>(items.size());
      items.push_back(item);
    }
  }
  std::vector<i32> output_place;
  for (int t = 0; t < tokens; t += 3) output_place.push_back(place_of[static_cast<size_t>(t)]);
  const auto padded = [](std::vector<i32> values, size_t size) {
    values.resize(std::max(values.size(), size), -7);
    return values;
  };

  // The same, slowly.
  std::vector<bool> stays(static_cast<size_t>(rows), false);
  for (int r = 0; r < rows; ++r) {
    const i32 place = row_place[static_cast<size_t>(r)];
    const i32 length = row_start[static_cast<size_t>(r) + 1] - row_start[static_cast<size_t>(r)];
    for (i32 i = 0; place >= 0 && i < length; ++i) {
      if (!decided[static_cast<size_t>(place + i)]) stays[static_cast<size_t>(r)] = true;
    }
  }
  std::vector<i32> target(static_cast<size_t>(here)), next_decided, next_place(row_place);
  std::vector<ExitPlace> places;
  int held = 0;
  for (int r = 0; r < rows; ++r) {
    const i32 place = row_place[static_cast<size_t>(r)];
    const i32 length = row_start[static_cast<size_t>(r) + 1] - row_start[static_cast<size_t>(r)];
    if (place < 0) continue;
    next_place[static_cast<size_t>(r)] = stays[static_cast<size_t>(r)] ? static_cast<i32>(next_decided.size()) : -1;
    for (i32 i = 0; i < length; ++i) {
      const size_t at = static_cast<size_t>(place + i);
      if (stays[static_cast<size_t>(r)]) {
        target[at] = static_cast<i32>(next_decided.size());
        next_decided.push_back(decided[at]);
        held |= decided[at];
      } else {
        target[at] = tokens + left + static_cast<i32>(places.size());
        places.push_back({static_cast<i32>(step.rows[static_cast<size_t>(r)].slot), 3 * r + 1 + i});
      }
    }
  }
  const i32 leaving = static_cast<i32>(places.size());
  std::vector<i32> kept;
  for (const AttentionItem& item : items) {
    if (stays[static_cast<size_t>(item.row)]) kept.push_back(item.group);
  }

  const ExitPoints points{1, 2, 5};
  const i32 layers = 7;  // the point is in front of layer 3: lines 3 and 4
  std::vector<i32> raw((items.size() + 1) * (sizeof(AttentionItem) / 4));
  std::memcpy(raw.data(), items.data(), items.size() * sizeof(AttentionItem));
  OpRig rig("exit_rows");
  const Expr symbol = rig.graph().AddSymbol("tokens", 0, 1 << 20);
  const TensorId decided_id = rig.Add("decided", TensorRole::kState, padded(decided, 1));
  const TensorId place_id = rig.Add("row_place", TensorRole::kState, padded(row_place, 1));
  const TensorId items_id = rig.Add("items", TensorRole::kState, raw);
  const TensorId output_id = rig.Add("output_place", TensorRole::kState, padded(output_place, 1));
  const TensorId total_id = rig.Add("total", TensorRole::kState, std::vector<u64>{5'000'000'000});
  const TensorId target_id = rig.Output<i32>("target", static_cast<size_t>(here) + 1);
  const TensorId left_id = rig.Output<i32>("left", 2 * static_cast<size_t>(tokens) + 2);
  const TensorId counts_id = rig.Output<i32>("counts", (layers + 1) * kExitCounts);
  rig.graph().BeginSection("layers", 3);  // a task behind layer 2 alone
  rig.graph().Call<ExitRows>(
      "exit_rows",
      {rig.Input("row_start", row_start),
       rig.Input("before", std::vector<i32>{here, left, static_cast<i32>(items.size()), 0, 0,
                                            static_cast<i32>(output_place.size())}),
       decided_id, place_id, items_id, output_id, total_id, target_id, left_id, counts_id},
      {rig.graph().Dim(symbol), points, layers}, {Max(Layer() - 1, 0)}, Storage<BF16>::kVariant);
  rig.Start(backend);
  step.Upload(rig);
  StepHeader header = step.Header(rig);
  header.symbols[0] = tokens;
  rig.Step(header);

  const std::vector<i32> counts = rig.Get<i32>(counts_id);
  for (int line = 0; line <= layers; ++line) {
    const i32* c = counts.data() + line * kExitCounts;
    CAPTURE(line);
    if (line < 3 || line > 4) {
      CHECK(c[kExitStay] == -1);  // poison
      continue;
    }
    CHECK(c[kExitStay] == static_cast<i32>(next_decided.size()));
    CHECK(c[kExitLeft] == left + leaving);
    CHECK(c[kExitItems] == static_cast<i32>(kept.size()));
    // The next point is in front of layer 5.
    CHECK(c[kExitTests] == (line == 4 ? (c[kExitStay] + 1) / 2 : 0));
    CHECK(c[kExitSettles] == (line == 3 ? (leaving > 0 || held) : held));
  }
  CHECK(rig.Get<u64>(total_id)[0] == 5'000'000'000 + static_cast<u64>(leaving));
  const std::vector<i32> got_target = rig.Get<i32>(target_id), got_left = rig.Get<i32>(left_id);
  CHECK(std::equal(target.begin(), target.end(), got_target.begin()));
  CHECK(got_target[static_cast<size_t>(here)] == -1);
  CHECK(std::memcmp(got_left.data() + 2 * left, places.data(), places.size() * 8) == 0);
  const std::vector<i32> got_decided = rig.Get<i32>(decided_id), got_items = rig.Get<i32>(items_id);
  CHECK(std::equal(next_decided.begin(), next_decided.end(), got_decided.begin()));
  std::vector<i32> got_kept;
  for (size_t i = 0; i < kept.size(); ++i) {
    got_kept.push_back(reinterpret_cast<const AttentionItem*>(got_items.data())[i].group);
  }
  CHECK(got_kept == kept);
  const std::vector<i32> got_place = rig.Get<i32>(place_id), got_output = rig.Get<i32>(output_id);
  CHECK(std::equal(next_place.begin(), next_place.end(), got_place.begin()));
  for (size_t i = 0; i < output_place.size(); ++i) {
    const i32 before = output_place[i];
    CHECK(got_output[i] == (before < tokens ? target[static_cast<size_t>(before)] : before));
  }
  rig.CheckUnwritten();
}

}  // namespace eventide
