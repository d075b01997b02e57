// The next token of one row, and the end of its step: appends to the slot's history, applies the
// stop rules and reports to the host. Greedy from the head's per-tile best; else top-k, then top-p,
// then the largest logit / temperature + Gumbel noise among what they keep. The noise is a function
// of the request's key, the token's position and its id, so a draw depends on nothing else in the
// batch.
//
// Order everywhere: logit descending, then id ascending; NaN is lower than every number.
#pragma once

#include "device/loop.h"
#include "device/op.h"
#include "device/philox.h"
#include "ops/linear_epilogue.h"
#include "ops/select.h"

namespace eventide {

struct Sample {
  static constexpr OpInfo kInfo = {"sample", 3, {In("row_output"), In("logits"), In("best")}};
  enum : int { kRowOutput, kLogits, kBest };

  struct Params {
    i32 vocab;          // at most 2^21
    i32 logits_stride;  // floats per output, a multiple of 32
  };

  using Best = BestLogit;

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const i32 r = t.at.at[0];
    const Row& row = t.step.Rows()[r];
    SlotState& slot = t.step.Slots()[row.slot];
    const i32 length = QueryLength(row, t.step.Slots(), t.step.header->step);
    const i32 first_output = t.Operand<const i32>(kRowOutput)[r];
    const bool appends = length > 0 && (row.sampling & kRowSample) && first_output >= 0 &&
                         slot.finish == kSlotRunning;
    i32 token = -1;
    if (appends) {
      token = Next(w, t, slot, first_output + (row.sampling & kRowAllLogits ? length - 1 : 0));
    }
    w.Sync();  // every thread has read the slot
    if (w.Leader()) {
      slot.context_length += static_cast<u32>(length);
      if (appends) Append(slot, token, t.step.header->step);
      reinterpret_cast<StepResult*>(t.step.header->results_ring_ptr)[r] = {
          row.slot, appends ? 1u : 0u, slot.finish, token};
    }
  }

 private:
  static EVT_FN void Append(SlotState& slot, i32 token, u64 step) {
    reinterpret_cast<i32*>(slot.history)[slot.history_length] = token;
    const u32 history = ++slot.history_length;
    u32 finish = history >= slot.max_length ? kSlotLength : kSlotRunning;
    if (history >= slot.min_length) {
      EVT_ROLLED
      for (u32 i = 0; i < Min(slot.stop_count, kMaxStopTokens); ++i) {
        if (slot.stop_tokens[i] == token) finish = kSlotStopped;
      }
    }
    slot.finish_stamp = step + 1;
    // Releases finish_stamp to workers that only now start; counterpart: QueryLength.
    DirectSync::StoreRelease(&slot.finish, finish);
  }

  template <class W>
  static EVT_FN i32 Next(W& w, const Task<Params>& t, const SlotState& slot, i32 output) {
    const Params& p = t.params();
    float* memory = reinterpret_cast<float*>(w.Scratch());
    const i32 tiles = CeilDiv(p.vocab, kBestIds);
    const Best* tile_best = t.Operand<const Best>(kBest) + static_cast<i64>(output) * tiles;
    const Best top = Largest<4>(w, memory, tiles, [&](i32 i) { return tile_best[i]; });
    const u32 top_key = OrderKey(top.value);
    // Also when no logit is a number above -infinity: no distribution to draw from.
    if (!(slot.temperature > 0.0f) || top_key <= OrderKey(BitsFloat(0xff800000u))) return top.id;

    constexpr float kLog2E = 1.4426950408889634f;
    const float* logits =
        t.Operand<const float>(kLogits) + static_cast<i64>(output) * p.logits_stride;
    const LogitRow row{logits, p.vocab, top.value, Divide(kLog2E, slot.temperature)};
    Cut kept = KeepAll();
    EVT_ROLLED
    for (i32 stage = 0; stage < 2; ++stage) {
      const bool by_count = stage == 0;
      if (by_count && (slot.top_k == 0 || slot.top_k >= static_cast<u32>(p.vocab))) continue;
      if (!by_count && !(slot.top_p < 1.0f)) continue;
      const float goal = by_count ? static_cast<float>(slot.top_k) : slot.top_p;
      kept = FindCut(w, row, CutGoal{kept, by_count, goal}, memory);
    }
    return Draw(w, row, kept, slot.key, slot.history_length, memory);
  }

  // -log2 of an exponential variate, from 32 random bits: Gumbel noise in units of log2, up to a
  // constant.
  static EVT_FN float Noise(u32 bits) {
    // v in (0, 1); E = -ln(1 - v) keeps its relative precision where it is small, which is what
    // wins.
    const float v = Min(Fma(static_cast<float>(bits), 0x1p-32f, 0x1p-33f), 0x1.fffffep-1f);
    float series = Fma(v, 0.25f, 0.33333334f);
    series = Fma(v, series, 0.5f);
    series = Fma(v, series, 1.0f);
    const float near_zero = Multiply(v, series);
    const float far = Multiply(-Log2(Add(1.0f, -v)), 0.69314718f);
    return -Log2(v < 0x1p-6f ? near_zero : far);
  }

  // The largest noisy logit among the ids that the cut keeps.
  template <class W>
  static EVT_FN i32 Draw(W& w, const LogitRow& row, const Cut& kept, u64 key, u32 position,
                         float* memory) {
    constexpr i32 kIds = 4;  // that share a Philox block
    w.Sync();
    const Best best = Largest<1>(w, memory, CeilDiv(row.vocab, kIds), [&](i32 block) {
      Best found{BitsFloat(0xff800000u), kNoId};
      bool any = false;
      EVT_ROLLED
      for (i32 l = 0; l < kIds; ++l) any = any || Kept(row, kept, block * kIds + l);
      if (!any) return found;
      PhiloxBlock random = Philox4x32(key, static_cast<u64>(block), position);
      EVT_ROLLED
      for (i32 l = 0; l < kIds; ++l) {
        const u32 bits = random.lane[0];
        for (i32 k = 1; k < kIds; ++k) random.lane[k - 1] = random.lane[k];  // registers: no index
        const i32 id = block * kIds + l;
        if (!Kept(row, kept, id)) continue;
        const float score = Add(row.Scaled(row.logits[id]), Noise(bits));
        if (Better({score, id}, found)) found = {score, id};
      }
      return found;
    });
    return best.id;
  }

  static EVT_FN bool Kept(const LogitRow& row, const Cut& kept, i32 id) {
    if (id >= row.vocab) return false;
    const u32 key = OrderKey(row.logits[id]);
    return key != 0 && kept.Keeps(OrderOf(key, id));
  }

  static constexpr i32 kNoId = 0x7fffffff;
  static EVT_FN bool Better(const Best& a, const Best& b) {
    return OrderOf(OrderKey(a.value), a.id) > OrderOf(OrderKey(b.value), b.id);
  }

  // The best of value(i), i < n; known to all threads. Any tree gives the same.
  template <i32 kAhead, class W, class Value>
  static EVT_FN Best Largest(W& w, float* memory, i32 n, const Value& value) {
    Best* found = reinterpret_cast<Best*>(memory);
    w.Parallel(kSelectItems, [&](i32 item) {
      Best best{BitsFloat(0x7fc00000u), kNoId};
      EVT_ROLLED
      for (i32 first = item; first < n; first += kAhead * kSelectItems) {
        Best next[kAhead];  // several loads on their way at once
        for (i32 k = 0; k < kAhead; ++k) next[k] = value(Min(first + k * kSelectItems, n - 1));
        for (i32 k = 0; k < kAhead; ++k) best = Better(next[k], best) ? next[k] : best;
      }
      found[item] = best;
    });
    w.Sync();
    EVT_ROLLED
    for (i32 stride = kSelectItems / 2; stride > 0; stride /= 2) {
      w.Parallel(stride, [&](i32 i) {
        if (Better(found[i + stride], found[i])) found[i] = found[i + stride];
      });
      w.Sync();
    }
    const Best best = found[0];
    w.Sync();
    return best;
  }
};

}  // namespace eventide
