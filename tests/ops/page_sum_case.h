// The checksum ops as tests: what a plain loop over the same bytes gives.
#pragma once

#include "ops/page_sum1.h"
#include "ops/page_sum2.h"
#include "ops/publish_count.h"
#include "tests/ops/op_rig.h"

namespace eventide {

inline constexpr int kPageSumTasks = 3;
inline constexpr i32 kPageSumSeed = 7;

// The order in which Compute reads: with each page of records up to `hold` pages of weights before
// it, the rest of the weights at the end.
inline std::vector<u32> ExpectedPageSum(const std::vector<u32>& weights,
                                        const std::vector<u32> (&records)[2], int task,
                                        i32 weight_pages, i32 per_page, i32 hold) {
  const auto mix = [](u32 sum, u32 value) {
    sum = (sum ^ value) * 0x9e3779b1u;
    return sum ^ (sum >> 15);
  };
  u32 sum = kPageSumSeed;
  for (const u32 value : {0u, static_cast<u32>(task), 0u, 0u}) sum = mix(sum, value);
  size_t weight = 0;
  const size_t page_words = 2 * kRecordWords, all = static_cast<size_t>(weight_pages) * page_words;
  for (const std::vector<u32>& input : records) {
    const size_t page = static_cast<size_t>(per_page) * kRecordWords;
    for (size_t first = 0; first < input.size(); first += page) {
      const size_t stop = std::min(all, weight + static_cast<size_t>(hold) * page_words);
      for (; weight < stop; ++weight) sum = mix(sum, weights[weight]);
      for (size_t i = first; i < std::min(input.size(), first + page); ++i)
        sum = mix(sum, input[i]);
    }
  }
  for (; weight < all; ++weight) sum = mix(sum, weights[weight]);
  std::vector<u32> record;
  for (u32 i = 0; i < kRecordWords; ++i) record.push_back(mix(sum, i));
  return record;
}

inline std::vector<u8> BytesOf(const std::vector<u32>& words) {
  std::vector<u8> bytes(words.size() * sizeof(u32));
  if (!words.empty()) std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

template <class Op>
void CheckPageSum(const OpBackend& backend, int records0, int records1, i32 weight_pages,
                  i32 per_page) {
  INFO(backend.name << ", " << Op::kInfo.name << ": " << records0 << " and " << records1
                    << " records, " << weight_pages << " pages of weights, " << per_page
                    << " records a page");
  u32 state = 1;
  const auto words = [&state](int count) {
    std::vector<u32> result(static_cast<size_t>(count));
    for (u32& word : result) word = state = state * 1664525u + 1013904223u;
    return result;
  };
  const std::vector<u32> weights = words(std::max(1, weight_pages) * 2 * kRecordWords);
  const std::vector<u32> records[2] = {words(records0 * kRecordWords),
                                       words(records1 * kRecordWords)};
  OpRig rig("page_sum");
  const TensorId w = rig.Input("weights", BytesOf(weights));
  const TensorId a = rig.Input("a", BytesOf(records[0]));
  const TensorId b = rig.Input("b", BytesOf(records[1]));
  const TensorId y = rig.Output<u8>("y", kPageSumTasks * kRecordBytes);
  const PageSumParams params = {
      kPageSumSeed, weight_pages, per_page, {{-1, records0}, {-1, records1}}, 1};
  rig.graph().Call<Op>("sum", {w, a, b, y}, params, {kPageSumTasks});
  rig.Start(backend);
  rig.Step({});
  std::vector<u8> expected;
  for (int task = 0; task < kPageSumTasks; ++task) {
    const std::vector<u8> record = BytesOf(
        ExpectedPageSum(weights, records, task, weight_pages, per_page, Op::kInfo.stream_floor));
    expected.insert(expected.end(), record.begin(), record.end());
  }
  CHECK(rig.Get<u8>(y) == expected);
  rig.CheckUnwritten();
}

inline void CheckPublishCount(const OpBackend& backend, u32 value, i32 limit) {
  INFO(backend.name << ", " << value << " mod " << limit + 1);
  OpRig rig("publish_count");
  const TensorId x = rig.Input("x", BytesOf({value}));
  const TensorId count = rig.Output<i32>("count", 1);
  rig.graph().Call<PublishCount>("publish", {x, count}, {limit}, {1});
  rig.Start(backend);
  rig.Step({});
  CHECK(rig.Get<i32>(count)[0] == static_cast<i32>(value % static_cast<u32>(limit + 1)));
}

inline void CheckPageSums(const OpBackend& backend) {
  for (const int records : {0, 1, 2, 7}) {
    for (const i32 weight_pages : {0, 1, 5}) {
      CheckPageSum<PageSum1>(backend, records, 3, weight_pages, 2);
      CheckPageSum<PageSum2>(backend, 2, records, weight_pages, 3);
    }
  }
  for (const u32 value : {0u, 5u, 0xfffffff0u}) CheckPublishCount(backend, value, 4);
}

}  // namespace eventide
