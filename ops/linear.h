// y[token, row] = sum over k of weight[row, k] * input[token, k], one task per tile of tokens and tile of rows,
// with the epilogues a decoder needs. Weights are packed and streamed ahead of every wait (device/layout.h).
//
// The same for experts: the weight is that of all experts in turn, a task's first coordinate is an element
// of the table "tiles" (ops/expert_tables.h), which says whose weight and which slots, and a slot's input is
// its own or that of its token.
//
// A norm in front of the linear is folded in: the producer stores x * gain and the sums of squares of x;
// the linear multiplies its result by 1 / rms, which is the same product in another order.
//
// Cost: every weight byte once per token tile; memory-bound up to some tens of tokens.
#pragma once

#include "device/dispatch.h"
#include "device/dtype.h"
#include "device/layout.h"
#include "device/op.h"
#include "ops/expert_tables.h"
#include "ops/linear_epilogue.h"

namespace eventide {

struct Linear {
  static constexpr OpInfo kInfo = {
      "linear", 13,
      {In("weight"), In("input"), In("bias"), In("sums"), In("count"), Out("output"),
       InOut("residual"), In("gain"), Out("next"), Out("next_sums"), Out("best"),
       In("tiles"), In("slot_token")},
      /*stream_floor=*/1, /*input_floor=*/2, /*constant_params=*/false,
      /*starts_early=*/true, /*even_tasks=*/true};
  using Params = LinearParams;

  // Tokens that a task multiplies: as many as have one step of all segments in a page.
  static EVT_FN constexpr i32 TileTokens(i32 element_bytes) {
    return static_cast<i32>(kPageBytes) / (kSegments * 16 * element_bytes);
  }
  static constexpr i32 kMaxTileTokens = kPageBytes / (kSegments * 16 * 2);
  static constexpr i32 kMaxTileRows = 32;
  static_assert(kExpertTileSlots <= kPageBytes / (kSegments * 16 * 4), "also of float32");

  static EVT_FN const ExpertTile& TileOf(const Task<Params>& t) {
    return t.Operand<const ExpertTile>(LinearOperand::kTiles)[t.at.at[0]];
  }
  // What a task multiplies: row tiles (of all experts in turn) and tokens, or slots.
  struct Part {
    i32 tile, tiles, token, tokens;
    bool of_team;  // of tokens that a team shares
  };
  // With few tokens, each task has its own rows and all of them. With more, tasks of a team have each other's rows, too,
  // and a part of the tokens: products of large tiles need fewer bytes. Its tasks wait for and notify the same elements,
  // so that nobody else need know.
  template <i32 kElements>
  static EVT_FN Part PartOf(const Task<Params>& t) {
    constexpr i32 kTokens = TileTokens(kElements);
    const Params& p = t.params();
    const i32 row_tiles = static_cast<i32>(static_cast<u32>(p.rows + p.tile_rows - 1) >> (p.tile_rows == 32 ? 5 : 4));
    Part part = {t.at.at[1] * p.tiles, p.tiles, 0, 0, false};
    if (p.expert_tiles > 0) {
      const ExpertTile& tile = TileOf(t);
      const i32 rows = tile.rows[p.gathers];
      part.tile = t.at.at[1] * rows;
      part.tiles = Min(rows, row_tiles - part.tile);
      part.tile += tile.expert * p.expert_tiles;
      part.token = tile.group * 8;
      part.tokens = tile.count;
      return part;
    }
    const i32 tokens = p.count_index < 0 ? t.Dim(p.tokens)
                                         : t.Operand<const i32>(LinearOperand::kCount)[p.count_index];
    const i32 each = p.eights > 0 && tokens <= kTokens ? 8 : kTokens * Max(p.team, 1);
    part.token = t.at.at[0] * each;
    part.tokens = Min(tokens - part.token, each);
    if (part.tokens > kTokens && p.team > 1) {
      const i32 bits = part.tokens > 2 * kTokens && p.team > 2 ? 2 : 1, mine = t.at.at[1] & ((1 << bits) - 1);
      part.tile -= mine * p.tiles;
      part.tiles <<= bits;
      const i32 groups = CeilDiv(part.tokens, 8);  // at least one for each
      const i32 begin = (groups * mine >> bits) * 8, end = (groups * (mine + 1) >> bits) * 8;
      part.token += begin;
      part.tokens = Min(part.tokens, end) - begin;
      part.of_team = true;
    }
    part.tiles = Min(part.tiles, row_tiles - part.tile);
    return part;
  }

  // Whether up to four row tiles are multiplied together, K segment after segment, on targets that have tiles for that.
  template <class T, class W>
  static EVT_FN bool Wide(const Params& p, const Part& part) {
    return W::kWideTiles && sizeof(T) == 2 && p.tile_rows == 32 && p.gathers == 0 && part.tiles > 1 &&
           (part.tokens > kWideFrom || part.of_team);
  }
  // With fewer, pairs by mma.sync are as fast (measured). Members of a team, which have as many at least, wait for the
  // slowest: where some were wide and others, of just so many, were not, steps took 12 to 18 % longer.
  static constexpr i32 kWideFrom = 32;
  static constexpr i32 kKeepsUpTo = 16;  // tokens: with more, registers are short

  template <class T, class L>
  static EVT_FN void Stream(L& lane, const Task<Params>& t) {
    constexpr i32 kElements = static_cast<i32>(sizeof(T));
    const Params& p = t.params();
    const i32 steps = SegmentSteps(p.k);
    const i32 page_steps = PageSteps(p.tile_rows, kElements);
    const u32 step_bytes = static_cast<u32>(p.tile_rows * (kSegments * 16 * kElements));
    const Part part = PartOf<kElements>(t);
    if constexpr (L::kWideTiles) {
      if (Wide<T, L>(p, part)) {
        StreamSegments(lane, t, steps, part);
        return;
      }
    }
    const u8* tile = t.Operand<const u8>(LinearOperand::kWeight) +
                     static_cast<i64>(part.tile) * PackedTile(p.tile_rows, p.k) * kElements;
    EVT_ROLLED
    for (i32 left = part.tiles; left > 0; --left) {
      EVT_ROLLED
      for (i32 step = 0; step < steps; step += page_steps) {
        const u32 bytes = static_cast<u32>(Min(page_steps, steps - step)) * step_bytes;
        lane.Copy(CopyShape::Of(1, bytes), [&](i32, i32) { return tile; });
        tile += bytes;  // tiles follow each other, too
      }
    }
  }

  // Pages of one segment: of a pass's first pair of row tiles, then of its second, where there is one.
  template <class L>
  static EVT_FN void StreamSegments(L& lane, const Task<Params>& t, i32 steps, const Part& part) {
    const i32 layer = t.BoxLayer(LinearOperand::kWeight);
    EVT_ROLLED
    for (i32 first = 0; first < part.tiles; first += kPassTiles) {
      const i32 end = Min(part.tiles, first + kPassTiles);
      EVT_ROLLED
      for (i32 segment = 0; segment < kSegments; ++segment) {
        EVT_ROLLED
        for (i32 step = 0; step < steps; step += kPassSteps) {
          EVT_ROLLED
          for (i32 tile = first; tile < end; tile += 2) {
            const bool pair = tile + 1 < end;
            lane.CopyBox(t.Box(pair ? kBoxPair : kBoxTile), BoxAt{{0, segment, step, part.tile + tile, layer}},
                         pair ? kPageBytes : kPageBytes / 2, pair ? kPageBytes / 2 : 0);
          }
        }
      }
    }
  }
  // What copies and products of a task go by.
  struct Shape {
    Part part;
    i32 steps, weight_steps, input_steps;
    bool wide, keeps;  // keeps: activations are copied once, and their pages stay for all of the row tiles
    const u8* input;  // of the first group of tokens; of all tokens where the input is gathered
  };
  template <class T, class W>
  static EVT_FN Shape ShapeOf(const W& w, const Task<Params>& t) {
    constexpr i32 kElements = static_cast<i32>(sizeof(T));
    const Params& p = t.params();
    Shape shape = {PartOf<kElements>(t), SegmentSteps(p.k), PageSteps(p.tile_rows, kElements), 0, false, false,
                   t.Operand<const u8>(LinearOperand::kInput)};
    shape.input_steps = InputSteps(CeilDiv(shape.part.tokens, 8), kElements);
    shape.wide = Wide<T, W>(p, shape.part);
    shape.keeps = !shape.wide && shape.part.tiles > 1 && shape.part.tokens <= kKeepsUpTo &&
                  shape.steps <= w.MostKept() * shape.input_steps;
    if (p.gathers == 0) {
      shape.input += static_cast<u64>(shape.part.token / 8) * (static_cast<u64>(ActivationGroup(p.k)) * kElements);
    }
    return shape;
  }

  template <class T, class L>
  static EVT_FN void Input(L& lane, const Task<Params>& t) {
    constexpr i32 kElements = static_cast<i32>(sizeof(T));
    constexpr u32 kStepBytes = kSegments * 128 * kElements;
    Shape shape;
    if constexpr (Follows<L>) {
      shape = SetupOf<T>(lane).shape;
    } else {
      shape = ShapeOf<T>(lane, t);
    }
    if (t.params().gathers == 0) {
      lane.ByOne([&](auto& one) { CopyGroups<kElements>(one, t, shape); });
      return;
    }
    EVT_ROLLED
    for (i32 left = Turns(shape); left > 0; --left) {
      EVT_ROLLED
      for (i32 step = 0; step < shape.steps; step += shape.input_steps) {
        const u32 bytes = static_cast<u32>(Min(shape.input_steps, shape.steps - step)) * kStepBytes;
        GatherRows<kElements>(lane, t, shape.part, bytes, shape.input + static_cast<u64>(step) * kStepBytes);
      }
    }
  }
  static EVT_FN i32 Turns(const Shape& shape) { return shape.keeps ? 1 : shape.part.tiles; }
  // For each tile, or once, pages of all segments; wide: for each pass pages of one segment.
  template <i32 kElements, class L>
  static EVT_FN void CopyGroups(L& lane, const Task<Params>& t, const Shape& shape) {
    constexpr u32 kStepBytes = kSegments * 128 * kElements;
    const bool wide = shape.wide;
    const i32 groups = CeilDiv(shape.part.tokens, 8), begin = shape.part.token / 8, steps = shape.steps;
    const u64 group_bytes = static_cast<u64>(ActivationGroup(t.params().k)) * kElements;
    const i32 page_steps = wide ? kPassSteps : shape.input_steps;
    const u64 box = t.Box(wide ? kBoxSegment : groups <= 2 ? kBox16 : groups <= 4 ? kBox32 : kBox64);
    const u32 piece = static_cast<u32>(page_steps) * (wide ? kWideStepBytes : kStepBytes);
    const i32 layer = t.BoxLayer(LinearOperand::kInput);
    EVT_ROLLED
    for (i32 left = Turns(shape); left > 0; left -= wide ? kPassTiles : 1) {
      EVT_ROLLED
      for (i32 segment = 0; segment < (wide ? kSegments : 1); ++segment) {
        EVT_ROLLED
        for (i32 step = 0; step < steps; step += page_steps) {
          if constexpr (L::kTensorBoxes) {
            if (Follows<L> || groups > 1) {  // one group is one run of memory, handed over by Prepare
              const BoxAt at = wide ? BoxAt{{0, segment, step, begin, layer}} : BoxAt{{0, step, begin, 0, layer}};
              lane.CopyBox(box, at, kPageBytes, piece);
              continue;
            }
          }
          const u32 bytes = static_cast<u32>(Min(page_steps, steps - step)) * kStepBytes;
          const u8* from = shape.input + static_cast<u64>(step) * kStepBytes;
          lane.Copy(CopyShape::Of(groups, bytes), [&](i32 g, i32) { return from + g * group_bytes; });
        }
      }
    }
  }

  template <i32 kElements, class L>
  static EVT_FN void GatherRows(L& lane, const Task<Params>& t, const Part& part, u32 bytes, const u8* input) {
    const i32* slot_token = t.Operand<const i32>(LinearOperand::kSlotToken) + part.token;
    const u64 group_bytes = static_cast<u64>(ActivationGroup(t.params().k)) * kElements;
    lane.CopyRows(part.tokens, bytes, 8 * kElements, [&](i32 slot) {
      const i32 token = slot_token[slot];
      return input + static_cast<u64>(token / 8) * group_bytes +
             static_cast<u32>(token % 8) * (8 * kElements);
    });
  }

  // Pages of activations of up to 16, 32 or 64 tokens: steps of 8 tokens are a run of memory, and a page has
  // some of each group of 8. kPassSteps of one segment: of up to 64 tokens, of a pair of row tiles, of
  // one.
  enum Box : i32 { kBox16, kBox32, kBox64, kBoxSegment, kBoxPair, kBoxTile, kBoxes };
  static EVT_FN TensorBox BoxOf(const Params& p, i32 box, i32 bytes) {
    const u32 steps = static_cast<u32>(SegmentSteps(p.k)), run = static_cast<u32>(kSegments * 128 * bytes);
    const u64 group = static_cast<u64>(ActivationGroup(p.k) * bytes);
    if (box <= kBox64) {
      const u32 groups = 2u << box;
      return {LinearOperand::kInput, {run / 8, steps, 0, 1}, {run, group, group},
              {run / 8, static_cast<u32>(InputSteps(static_cast<i32>(groups), bytes)), groups, 1}};
    }
    if (box == kBoxSegment) {
      const u32 piece = run / kSegments;
      return {LinearOperand::kInput, {piece / 8, kSegments, steps, 0}, {piece, run, group},
              {piece / 8, 1, kPassSteps, kPageBytes / (kPassSteps * kWideStepBytes)}};
    }
    const u32 piece = static_cast<u32>(p.tile_rows / 16 * kFragment * bytes);
    const u64 tile = static_cast<u64>(PackedTile(p.tile_rows, p.k) * bytes);
    return {LinearOperand::kWeight, {piece / 8, kSegments, steps, 0}, {piece, u64{piece} * kSegments, tile},
            {piece / 8, 1, kPassSteps, box == kBoxPair ? 2u : 1u}};
  }
  static constexpr u32 kWideStepBytes = 256;  // of 8 tokens, of elements of kBoxedElementBytes

  // StepsPerPage of a tile of 16 or 32 rows, without a division.
  static EVT_FN constexpr i32 PageSteps(i32 tile_rows, i32 element_bytes) {
    return tile_rows == 32 ? StepsPerPage(32, element_bytes) : StepsPerPage(16, element_bytes);
  }
  // Steps whose activations share a page: the largest power of two that fits.
  static EVT_FN i32 InputSteps(i32 groups, i32 element_bytes) {
    const i32 fit = static_cast<i32>(kPageBytes) / (kSegments * 128 * element_bytes);
    return groups <= 1 ? fit : groups <= 2 ? fit / 2 : groups <= 4 ? fit / 4 : fit / 8;
  }

  // Before the task begins: what would take as long as several pages.
  template <class T, class W>
  static EVT_FN void Prepare(W& w, const Task<Params>& t) {
    Memo& memo = MemoOf(w);
    const Shape shape = ShapeOf<T>(w, t);
    const Params& p = t.params();
    const i32 first_row =
        (shape.part.tile - (p.expert_tiles > 0 ? TileOf(t).expert * p.expert_tiles : 0)) * p.tile_rows;
    const Setup<T> setup{shape, LinearEpilogue<T>(t, memo.scale, first_row, shape.part.token, shape.part.tokens)};
    if (w.Leader()) SetupOf<T>(w) = setup;
    if constexpr (Prepares<W>) {
      if (p.gathers == 0 && shape.part.tokens <= 8) {  // one group is one run of memory
        constexpr u32 kStepBytes = kSegments * 128 * static_cast<u32>(sizeof(T));
        w.HandCopies(shape.input, static_cast<u32>(shape.input_steps) * kStepBytes,
                     static_cast<u32>(shape.steps) * kStepBytes, Turns(shape));
      }
    }
  }

  template <class T, class W>
  static EVT_FN void Compute(W& w, const Task<Params>& t) {
    const Params& p = t.params();
    if constexpr (!Follows<W>) Prepare<T>(w, t);
    Memo& memo = MemoOf(w);
    Setup<T>& setup = SetupOf<T>(w);
    const Shape shape = setup.shape;
    const Part part = shape.part;
    const bool wide = shape.wide;
    LinearEpilogue<T>& ending = setup.ending;
    typename W::template LinearTile<T, TileTokens(static_cast<i32>(sizeof(T)))> tile(w, p.tile_rows / 16, part.tokens,
                                                                                  wide);
    auto row = tile.RowOf(ending, 0);
    if (!w.AwaitReady()) return;
    if (p.norm_size > 0) NormScales(w, t, part.token, part.tokens, memo);
    EVT_ROLLED
    for (i32 i = 0; i < part.tiles; i += tile.AtOnce()) {
      if (i > 0) {
        if (wide) w.Sync();  // a pass begins for all warps together (nvidia_wgmma.cuh)
        row = tile.RowOf(ending, i * p.tile_rows);
      }
      const auto first = tile.First(ending, row);
      tile.Products(w, shape.steps, shape.weight_steps, shape.input_steps, part.tiles - i,
                    i + 1 < part.tiles && setup.shape.keeps);
      tile.Finish(w, ending, row, first, i * p.tile_rows, part.tiles - i);
    }
  }

 private:
  // A task as Prepare leaves it. How it ends lies in memory, where it costs no registers while products are summed.
  template <class T>
  struct alignas(16) Setup {
    Shape shape;
    LinearEpilogue<T> ending;
  };
  template <class T, class W>
  static EVT_FN Setup<T>& SetupOf(W& w) {
    static_assert(sizeof(Setup<T>) <= kPreparedBytes, "prepared");
    return *reinterpret_cast<Setup<T>*>(w.Prepared());
  }
  // Kept from one task of a worker to the next: all tasks of a grid's layer need the same scales.
  struct Memo {
    const Node* node;
    i32 layer, token;
    float scale[kMaxTileTokens];
  };
  static_assert(sizeof(Memo) <= kMemoBytes, "memo");
  template <class W>
  static EVT_FN Memo& MemoOf(W& w) {
    return *reinterpret_cast<Memo*>(w.Memo());
  }

  // 1 / rms of each token: sums of squares over blocks of 16 columns, added in the fixed order of RowSums.
  template <class W>
  static EVT_FN void NormScales(W& w, const Task<Params>& t, i32 begin, i32 tokens, Memo& memo) {
    if (memo.node == &t.node && memo.layer == t.at.layer && memo.token == begin) return;
    const Params& p = t.params();
    const i32 blocks = CeilDiv(p.norm_size, 16);
    const float* sums = t.Operand<const float>(LinearOperand::kSums);
    const i32* slot_token = t.Operand<const i32>(LinearOperand::kSlotToken);
    w.SumsFrom(
        tokens, blocks,
        [&](i32 token) {
          const i32 at = p.gathers ? slot_token[begin + token] : begin + token;
          return sums + static_cast<i64>(at) * blocks;
        },
        [&](i32 token, float sum) {
          const float mean = Divide(sum, static_cast<float>(p.norm_size));
          memo.scale[token] = Divide(1.0f, SquareRoot(Add(mean, p.epsilon)));
        });
    w.Sync();  // every thread has compared, and may read the scales
    if (w.Leader()) {
      memo.node = &t.node;
      memo.layer = t.at.layer;
      memo.token = begin;
    }
  }
};

}  // namespace eventide
