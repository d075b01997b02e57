// The next tokens of the step's rows, and the end of their step. Task i below the number of outputs draws
// the token that follows output i; task outputs + r ends row r where it has no output to draw from.
//
// A row that carries drafts has an output for each of them. The last of its tasks to arrive takes the drawn
// tokens in order, as long as the draft before each was what was drawn: so the history is what it would be
// without drafts. It applies the stop rules, drafts tokens for the next step and reports to the host.
//
// Greedy from the head's per-tile best; else top-k, then top-p, then the largest logit / temperature +
// Gumbel noise among what they keep. The noise is a function of the request's key, the token's position
// and its id, so a draw depends on nothing else in the batch.
//
// Order everywhere: logit descending, then id ascending; NaN is lower than every number. Where no logit is a
// number nothing is drawn and the sequence ends.
#pragma once

#include "device/loop.h"
#include "device/op.h"
#include "device/philox.h"
#include "ops/draft.h"
#include "ops/select.h"
#include "ops/step_tables.h"

namespace eventide {

struct Sample {
  static constexpr OpInfo kInfo = {
      "sample",
      9,
      {In("row_start"), In("token_row"), In("row_output"), In("output_token"), In("counts"),
       In("logits"), In("best"), InOut("drawn"), InOut("arrived")}};
  enum : int {
    kRowStart,
    kTokenRow,
    kRowOutput,
    kOutputToken,
    kCounts,
    kLogits,
    kBest,
    kDrawn,    // i32[output]
    kArrived,  // u32[row], zero between steps
  };

  struct Params {
    i32 vocab;          // at most 2^21
    i32 logits_stride;  // floats per output, a multiple of 32
  };

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const i32 outputs = t.Operand<const i32>(kCounts)[kCountOutputs];
    const i32* row_output = t.Operand<const i32>(kRowOutput);
    const i32 output = t.at.at[0];
    const bool draws = output < outputs;
    const i32 r = draws ? t.Operand<const i32>(kTokenRow)[t.Operand<const i32>(kOutputToken)[output]]
                        : output - outputs;
    const Row& row = t.step.Rows()[r];
    const i32 first_output = row_output[r];
    const i32 length =
        t.Operand<const i32>(kRowStart)[r + 1] - t.Operand<const i32>(kRowStart)[r];
    // Outputs that a token is drawn from: the row's last ones.
    i32 draw_count = row.query_length == kDeviceKnows && !(row.sampling & kRowKnown) ? length : 1;
    if (!(row.sampling & kRowSample) || first_output < 0) draw_count = 0;
    // The row's last output, if it has any.
    const i32 last = first_output + (row.sampling & kRowAllLogits ? length : draw_count) - 1;
    const i32 at = output - (last - draw_count + 1);
    if (draws ? at < 0 || draw_count == 0 : draw_count > 0) return;
    i32* drawn = t.Operand<i32>(kDrawn);
    if (draws) {
      const i32 token = Draw(w, t, t.step.Slots()[row.slot], output, at);
      if (w.Leader()) drawn[output] = token;
      u32* arrived = t.Operand<u32>(kArrived) + r;
      if (draw_count > 1) {
        if (w.Arrive(arrived) + 1 < static_cast<u32>(draw_count)) return;
        if (w.Leader()) *arrived = 0;  // for the next step
      }
    }
    EndRow(w, t, r, length, draw_count, drawn + last - draw_count + 1);
  }

 private:
  static constexpr i32 kNoToken = -1;
  static constexpr i32 kMemory = Max(kSelectMemory, kLargestMemory);  // floats

  // What the leader tells the others.
  struct Ending {
    i32 token[kMaxDraftTokens + 1], draft[kMaxDraftTokens + 1];
    i32 length;  // of the history
    i32 drafts;  // to look for
  };
  static_assert(kMemory * 4 + static_cast<i32>(sizeof(Ending)) <= static_cast<i32>(kScratchBytes));

  template <class W>
  static EVT_FN void EndRow(W& w, const Task<Params>& t, i32 r, i32 query_length, i32 draw_count,
                            const i32* drawn) {
    const Row& row = t.step.Rows()[r];
    SlotState& slot = t.step.Slots()[row.slot];
    i32* history = reinterpret_cast<i32*>(slot.history);
    float* memory = reinterpret_cast<float*>(w.Scratch());
    Ending& ending = *reinterpret_cast<Ending*>(memory + kMemory);
    const bool appends = draw_count > 0 && slot.finish == kSlotRunning;
    w.Parallel(draw_count, [&](i32 i) {
      ending.token[i] = drawn[i];
      ending.draft[i] = i + 1 < draw_count ? history[slot.history_length + static_cast<u32>(i)] : -1;
    });
    w.Sync();  // every thread has read the slot
    if (w.Leader()) {
      const StepResult result =
          Append(slot, history, ending, appends ? draw_count : 0, query_length);
      Report(t, r, row.slot, ending, result);
    }
    if (!appends) return;
    w.Sync();
    const i32 drafts = Lookup::Draft(w, history, ending.length, ending.drafts, memory);
    if (w.Leader()) {
      // Relaxed: one word says all; counterpart: QueryLength.
      DirectSync::StoreRelaxed(
          &slot.pace, NextPace(slot.pace, t.step.header->step,
                               slot.finish == kSlotRunning ? static_cast<u32>(drafts) : kPaceEnded));
      if (slot.partner != 0) TellPartner(slot, *reinterpret_cast<SlotState*>(slot.partner));
    }
  }

  // What the two models of a sequence must know of each other. Their steps run in turns, so that no worker
  // is at the partner's slot now: nothing is needed of the step that its pace might name.
  static EVT_FN void TellPartner(const SlotState& slot, SlotState& partner) {
    const u32 length = slot.history_length;
    if (slot.role == kSlotDrafts) {
      // Drafts end one short of the limit: another token follows those that are right.
      partner.pace = Min(length, partner.max_length - 1) - partner.history_length;
      return;
    }
    // The draft model's KV goes back to what was right. Its own last draft has none, so when all were right
    // two known tokens are left to it, else one.
    const bool ended = slot.finish != kSlotRunning || length >= partner.max_length;
    partner.history_length = length;
    partner.context_length = Min(partner.context_length, length - 1);
    partner.finish = ended ? kSlotLength : kSlotRunning;
    partner.pace = ended ? kPaceEnded : length - 1 - partner.context_length;
  }

  // Takes drawn tokens while the draft before them was right, and the sequence has not ended.
  static EVT_FN StepResult Append(SlotState& slot, i32* history, Ending& ending, i32 draw_count,
                                  i32 query_length) {
    u32 length = slot.history_length, finish = slot.finish;
    StepResult result = {};
    bool right = draw_count > 0;
    EVT_ROLLED
    for (i32 i = 0; right && finish == kSlotRunning; ++i) {
      const i32 token = ending.token[i];
      if (token == kNoToken) {
        finish = kSlotNoNumber;
        break;
      }
      right = token == ending.draft[i];
      history[length] = token;
      ++length;
      ++result.count;
      result.accepted += right;
      if (length >= slot.max_length) finish = kSlotLength;
      EVT_ROLLED
      for (u32 s = 0; s < Min(slot.stop_count, kMaxStopTokens); ++s) {
        if (length >= slot.min_length && slot.stop_tokens[s] == token) finish = kSlotStopped;
      }
    }
    slot.history_length = length;
    // Rejected drafts have KV behind the context, where the next step writes again.
    slot.context_length += static_cast<u32>(query_length - draw_count) + result.count;
    slot.finish = finish;
    u32 most = slot.draft_limit;
    if (slot.draft_length > 0) {
      most = NextDraftLength(slot.draft_length, most, static_cast<u32>(Max(draw_count - 1, 0)), result.accepted);
      slot.draft_length = static_cast<u16>(most);
    }
    ending.length = static_cast<i32>(length);
    ending.drafts = finish == kSlotRunning ? static_cast<i32>(Min(most, slot.max_length - 1 - length)) : 0;
    result.finish = finish;
    result.query_length = static_cast<u32>(query_length);
    return result;
  }

  static EVT_FN void Report(const Task<Params>& t, i32 r, u32 slot, const Ending& ending,
                            const StepResult& result) {
    StepResult& out = reinterpret_cast<StepResult*>(t.step.header->results_ring_ptr)[r];
    out.slot = slot;
    out.count = result.count;
    out.finish = result.finish;
    out.query_length = result.query_length;
    out.accepted = result.accepted;
    EVT_ROLLED
    for (u32 i = 0; i < result.count; ++i) out.tokens[i] = ending.token[i];
  }

  // A token for the position `at` behind the history's end, or kNoToken.
  //
  // Top-p needs no search: the best noisy logit of all is drawn, and if what comes before it in the order
  // has the wanted share already, so has what comes before anything behind it, and only what comes before
  // it is left to draw from. One draw is nearly always enough. Top-k is a search for the k-th number, from
  // the top down.
  template <class W>
  static EVT_FN i32 Draw(W& w, const Task<Params>& t, const SlotState& slot, i32 output, i32 at) {
    enum class Turn : i32 { kCount, kTotal, kDraw };
    const Params& p = t.params();
    float* memory = reinterpret_cast<float*>(w.Scratch());
    LogitRow row{t.Operand<const float>(kLogits) + static_cast<i64>(output) * p.logits_stride,
                 t.Operand<const Best>(kBest) + static_cast<i64>(output) * CeilDiv(p.vocab, kBestIds),
                 p.vocab, 0.0f, 0.0f};
    const bool by_share = slot.top_p < 1.0f;
    const u32 position = slot.history_length + static_cast<u32>(at);
    u64 least = kAllNumbers;  // what is kept
    float goal = 0.0f;
    const Best first = Largest<8>(w, memory, row.Tiles(), [&](i32 tile) { return row.tiles[tile]; });
    if (first.value != first.value) return kNoToken;
    // Also when no logit is above -infinity: no distribution to draw from.
    if (!(slot.temperature > 0.0f) || !(first.value > BitsFloat(0xff800000u))) return first.id;
    const u64 top = OrderOf(first.value, first.id);
    constexpr float kLog2E = 1.4426950408889634f;
    row.top = first.value;
    row.factor = Divide(kLog2E, slot.temperature);
    u64 high = top + 1, width = u64{1} << (kVocabBits + 19);  // a logit of 8 to 16 and one smaller by 1/2 to 1
    const bool by_count = slot.top_k > 0 && slot.top_k < static_cast<u32>(p.vocab);
    Turn turn = by_count ? Turn::kCount : by_share ? Turn::kTotal : Turn::kDraw;
    for (;;) {
      u64 probe = least;
      if (turn == Turn::kDraw) {
        const Best best = Largest(w, memory, row.Tiles(),
                                  [&](i32 tile) { return NoisyBest(row, least, tile, slot.key, position); });
        probe = OrderOf(row.logits[best.id], best.id) + 1;
        if (!by_share || probe == top + 1) return best.id;
      }
      if (turn == Turn::kCount) {
        // Down from the top in growing steps, then by halves.
        probe = width == 0             ? least + (high - least) / 2
                : high > least + width ? high - width
                                       : least;
      }
      const float sum = SumAbove(w, row, probe, turn == Turn::kCount, memory);
      if (turn == Turn::kDraw) {
        if (sum < goal) return static_cast<i32>(kNoId - static_cast<i32>((probe - 1) & kNoId));
        least = probe;
      } else if (turn == Turn::kTotal) {
        goal = Multiply(sum, slot.top_p);
        turn = Turn::kDraw;
      } else {
        const float k = static_cast<float>(slot.top_k);
        if (sum >= k) {
          least = probe;
          width = 0;
        } else {
          high = probe;
          width *= 4;
        }
        if (sum == k || high <= least + 1) turn = by_share ? Turn::kTotal : Turn::kDraw;
      }
    }
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

  // The largest noisy logit among the ids of a tile that are kept.
  static EVT_FN Best NoisyBest(const LogitRow& row, u64 least, i32 tile, u64 key, u32 position) {
    constexpr i32 kIds = 4;  // that share a Philox block
    Best found{BitsFloat(0xff800000u), kNoId};
    if (!row.Reaches(least, tile)) return found;
    EVT_ROLLED
    for (i32 block = tile * (kBestIds / kIds); block < (tile + 1) * (kBestIds / kIds); ++block) {
      bool any = false;
      EVT_ROLLED
      for (i32 l = 0; l < kIds; ++l) any |= row.Keeps(least, block * kIds + l);
      if (!any) continue;
      PhiloxBlock random = Philox4x32(key, static_cast<u64>(block), position);
      EVT_ROLLED
      for (i32 l = 0; l < kIds; ++l) {
        const u32 bits = random.lane[0];
        for (i32 k = 1; k < kIds; ++k) random.lane[k - 1] = random.lane[k];  // registers: no index
        const i32 id = block * kIds + l;
        if (!row.Keeps(least, id)) continue;
        const float score = Add(row.Scaled(row.logits[id]), Noise(bits));
        if (Better({score, id}, found)) found = {score, id};
      }
    }
    return found;
  }
};

}  // namespace eventide
