// Checksums in place of arithmetic: what the ops page_sum1 and page_sum2 share. Graphs made of them
// try the runtime (`eventide stress`, the simulator's campaigns): they use all parts of an op,
// pages of weights and pages of what other tasks wrote, and whatever a task reads too early, too
// late or not at all changes its checksum.
#pragma once

#include "device/op.h"

namespace eventide {

inline constexpr i32 kRecordBytes = 64;  // what one task writes: 16 u32
inline constexpr i32 kRecordWords = 16;

struct PageSumParams {
  i32 seed;
  i32 weight_pages;   // stream pages of each task
  i32 per_page;       // records in an input page
  DimRef records[2];  // operands 1 and 2: records to read of each (the dim counts those of the
                      // producer)
  i32 extent1;        // second extent of the grid, for the output's index
};

// y[task] = checksum of the task's pages of weights and of all records of both inputs.
template <int kHold>  // pages of each lane that Compute keeps at once
struct PageSum {
  using Params = PageSumParams;

  static EVT_FN i32 Records(const Task<Params>& t, i32 input) {
    return t.Dim(t.params().records[input]);
  }

  template <class T, class W>
  static EVT_FN void Stream(W& w, const Task<Params>& t) {
    const u8* weights = t.template Operand<const u8>(0);
    for (i32 page = 0; page < t.params().weight_pages; ++page)
      w.Copy(CopyShape::Of(2, kRecordBytes),
             [&](i32 i, i32) { return weights + (page * 2 + i) * kRecordBytes; });
  }
  template <class T, class W>
  static EVT_FN void Input(W& w, const Task<Params>& t) {
    for (i32 input = 0; input < 2; ++input) {
      const u8* records = t.template Operand<const u8>(1 + input);
      const i32 count = Records(t, input), per_page = t.params().per_page;
      for (i32 first = 0; first < count; first += per_page) {
        w.Copy(CopyShape::Of(Min(per_page, count - first), kRecordBytes),
               [&](i32 i, i32) { return records + static_cast<i64>(first + i) * kRecordBytes; });
      }
    }
  }

  static EVT_FN u32 Mix(u32 sum, u32 value) {
    sum = (sum ^ value) * 0x9e3779b1u;
    return sum ^ (sum >> 15);
  }
  template <class Page>
  static EVT_FN u32 MixPage(u32 sum, const Page& page, i32 pieces) {
    for (i32 i = 0; i < pieces; ++i) {
      const u32* words = reinterpret_cast<const u32*>(page.Piece(i));
      for (i32 word = 0; word < kRecordWords; ++word) sum = Mix(sum, words[word]);
    }
    return sum;
  }

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    u32 sum = Mix(static_cast<u32>(p.seed), static_cast<u32>(t.at.layer));
    for (i32 c = 0; c < kMaxCoords; ++c) sum = Mix(sum, static_cast<u32>(t.at.at[c]));
    i32 weights = p.weight_pages;
    for (i32 input = 0; input < 2; ++input) {
      const i32 count = Records(t, input);
      for (i32 first = 0; first < count; first += p.per_page) {
        const i32 held = Min(weights, kHold);
        for (i32 h = 0; h < held; ++h) sum = MixPage(sum, w.Take(kLaneStream), 2);
        sum = MixPage(sum, w.Take(kLaneInput), Min(p.per_page, count - first));
        w.Drop(kLaneInput);
        for (i32 h = 0; h < held; ++h) w.Drop(kLaneStream);
        weights -= held;
      }
    }
    for (; weights > 0; --weights) {
      sum = MixPage(sum, w.Take(kLaneStream), 2);
      w.Drop(kLaneStream);
    }
    const i32 index = t.at.at[0] * p.extent1 + t.at.at[1];
    u32* out = t.template Operand<u32>(3) + static_cast<i64>(index) * kRecordWords;
    w.Parallel(kRecordWords, [&](i32 i) { out[i] = Mix(sum, static_cast<u32>(i)); });
  }
};

}  // namespace eventide
