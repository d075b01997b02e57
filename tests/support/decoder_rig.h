// Whole decoders step by step on any executor, with everything a step may leave behind taken apart:
// the state before and after each step can be kept, put into another executor and compared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "models/presets.h"
#include "models/random_weights.h"
#include "runtime/cpu_executor.h"
#include "serve/backend.h"
#include "stress/poison.h"

namespace eventide {

// A decoder's program and its packed weights, which any number of executors on the host share.
class DecoderModel {
 public:
  DecoderModel(const ModelConfig& config, DType storage, const DecoderLimits& limits,
               uint64_t seed = 7) {
    const auto source = RandomWeights(config, seed);
    absl::StatusOr<Decoder> decoder = BuildDecoder(config, storage, limits);
    EVT_CHECK(decoder.ok());
    decoder_ = std::make_unique<Decoder>(*std::move(decoder));
    absl::StatusOr<Program> program = Lower(decoder_->graph, DecoderVerifyOptions(*decoder_));
    EVT_CHECK(program.ok());
    program_ = *std::move(program);
    weights_.resize(program_.tensors.size());
    for (size_t t = 0; t < weights_.size(); ++t) {
      if (program_.tensors[t].role != TensorRole::kWeight) continue;
      // Room in front, so that the tensor can begin where kernels may assume it does.
      weights_[t].resize(static_cast<size_t>(*CapacityBytes(program_, static_cast<int>(t))) +
                         kTensorAlignment);
    }
    PackOptions pack;
    pack.storage = storage;
    pack.order = FragmentOrderOf("cpu");  // the simulator's too
    pack.threads = 1;
    const auto sink = [this](int tensor, int64_t offset, const void* data, int64_t bytes) {
      std::memcpy(Weight(tensor) + offset, data, static_cast<size_t>(bytes));
      return absl::OkStatus();
    };
    EVT_CHECK(PackWeights(*source, decoder_->weights, pack, sink).ok());
    const std::vector<float> rope = RopeTensor(*decoder_);
    std::memcpy(Weight(decoder_->rope.index), rope.data(), rope.size() * sizeof(float));
  }

  const Decoder& decoder() const { return *decoder_; }
  const Program& program() const { return program_; }
  std::vector<PlacedTensor> Placed() {
    std::vector<PlacedTensor> placed;
    for (size_t t = 0; t < weights_.size(); ++t) {
      if (!weights_[t].empty())
        placed.push_back({static_cast<int>(t), Weight(static_cast<int>(t))});
    }
    return placed;
  }

 private:
  static constexpr uintptr_t kTensorAlignment = 256;
  uint8_t* Weight(int tensor) {
    const auto address = reinterpret_cast<uintptr_t>(weights_[static_cast<size_t>(tensor)].data());
    return reinterpret_cast<uint8_t*>((address + kTensorAlignment - 1) / kTensorAlignment *
                                      kTensorAlignment);
  }

  std::unique_ptr<Decoder> decoder_;
  Program program_;
  std::vector<std::vector<uint8_t>> weights_;
};

// What a step starts from and leaves behind.
struct DecoderState {
  std::vector<uint8_t> cache;
  std::vector<SlotState> slots;  // `history` is the slot's number here, an address in the executor
  std::vector<int32_t> history;
  bool operator==(const DecoderState& other) const {
    return cache == other.cache && history == other.history && slots.size() == other.slots.size() &&
           std::memcmp(slots.data(), other.slots.data(), slots.size() * sizeof(SlotState)) == 0;
  }
};

struct DecoderOutputs {
  std::vector<float> logits;  // of the step's outputs
  std::vector<StepResult> results;
  bool operator==(const DecoderOutputs& other) const {
    return logits.size() == other.logits.size() && results.size() == other.results.size() &&
           std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0 &&
           std::memcmp(results.data(), other.results.data(), results.size() * sizeof(StepResult)) ==
               0;
  }
};

class DecoderRig {
 public:
  DecoderRig(const Decoder& decoder, Executor* executor) : d_(decoder), executor_(*executor) {
    const DecoderLimits& l = d_.limits;
    blocks_per_slot_ = (l.max_model_len + l.block_size - 1) / l.block_size;
    slots_ = Allocate(l.max_rows * int64_t{sizeof(SlotState)});
    history_ = Allocate(int64_t{l.max_rows} * l.max_model_len * 4);
    tables_ = Allocate(int64_t{l.max_rows} * blocks_per_slot_ * 4);
    rows_ = Allocate(l.max_rows * int64_t{sizeof(Row)});
    results_ = Allocate(l.max_rows * int64_t{sizeof(StepResult)});
    // Every slot has blocks of its own, in an order that is not the identity.
    for (int slot = 0; slot < l.max_rows; ++slot) {
      for (int i = blocks_per_slot_; i-- > 0;)
        blocks_.push_back(static_cast<uint32_t>(i * l.max_rows + slot));
    }
    Write(tables_, blocks_.data());
    if (d_.HasExits()) {
      // Some of a random model's tokens leave, behind one layer or another.
      const std::vector<float> thresholds(static_cast<size_t>(d_.config.layers), 0.7f);
      Write(executor_.TensorBuffer(d_.exit_thresholds), thresholds.data());
    }
    poison_ = PoisonFor(d_, executor_);
  }

  // The first `count` blocks of a slot are those of another one from now on.
  void ShareBlocks(int from, int to, int count) {
    for (int i = 0; i < count; ++i) {
      blocks_[static_cast<size_t>(to * blocks_per_slot_ + i)] = BlockOf(from, i);
    }
    Write(tables_, blocks_.data());
  }
  uint32_t BlockOf(int slot, int i) const {
    return blocks_[static_cast<size_t>(slot * blocks_per_slot_ + i)];
  }

  // Sequences that nothing has been computed for; the cache holds NaNs.
  DecoderState Fresh(const std::vector<std::vector<int32_t>>& prompts) const {
    const DecoderLimits& l = d_.limits;
    DecoderState state;
    state.cache.assign(static_cast<size_t>(executor_.TensorBuffer(d_.cache).bytes), 0xff);
    state.slots.resize(static_cast<size_t>(l.max_rows));
    state.history.assign(static_cast<size_t>(l.max_rows) * static_cast<size_t>(l.max_model_len),
                         -1);
    for (size_t i = 0; i < state.slots.size(); ++i) {
      SlotState& slot = state.slots[i];
      std::memset(static_cast<void*>(&slot), 0, sizeof(slot));
      slot.history = i;
      if (i >= prompts.size()) continue;
      std::copy(prompts[i].begin(), prompts[i].end(),
                state.history.begin() + static_cast<long>(i) * l.max_model_len);
      slot.history_length = slot.prompt_length = static_cast<u32>(prompts[i].size());
      slot.max_length = static_cast<u32>(l.max_model_len);
      slot.finish = kSlotRunning;
      slot.key = 0x5eed + i;
      slot.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      slot.top_p = 1;
      slot.top_k = i % 3 == 1 ? 20 : 0;
    }
    return state;
  }

  void Put(DecoderState state) {
    for (SlotState& slot : state.slots) {
      slot.history =
          history_.address + slot.history * 4 * static_cast<u64>(d_.limits.max_model_len);
    }
    Write(executor_.TensorBuffer(d_.cache), state.cache.data());
    Write(slots_, state.slots.data());
    Write(history_, state.history.data());
  }

  DecoderState Get() {
    DecoderState state;
    state.cache.resize(static_cast<size_t>(executor_.TensorBuffer(d_.cache).bytes));
    state.slots.resize(static_cast<size_t>(slots_.bytes) / sizeof(SlotState));
    state.history.resize(static_cast<size_t>(history_.bytes) / 4);
    Read(executor_.TensorBuffer(d_.cache), state.cache.data());
    Read(slots_, state.slots.data());
    Read(history_, state.history.data());
    for (SlotState& slot : state.slots) {
      slot.history =
          (slot.history - history_.address) / 4 / static_cast<u64>(d_.limits.max_model_len);
      // Without the number of the step: each executor has run its own.
      slot.pace &= 0xff;
    }
    return state;
  }

  // All that a step must write before anything reads it becomes NaN, or counts that no table has.
  void Poison() {
    EVT_CHECK(Apply(poison_, &executor_).ok());
  }

  absl::Status Step(const std::vector<Row>& rows, DecoderOutputs* outputs) {
    EVT_CHECK(
        executor_.Write(rows_, 0, rows.data(), static_cast<int64_t>(rows.size() * sizeof(Row)))
            .ok());
    StepHeader header = {};
    header.rows = static_cast<u32>(rows.size());
    header.rows_capacity = static_cast<u32>(d_.limits.max_rows);
    header.rows_ptr = rows_.address;
    header.block_table_ptr = tables_.address;
    header.slot_state_ptr = slots_.address;
    header.results_ring_ptr = results_.address;
    header.blocks_per_slot = static_cast<u32>(blocks_per_slot_);
    header.symbols[0] = static_cast<i32>(rows.size());
    header.symbols[1] = kSumOfRows;
    const absl::Status status = executor_.RunStep(header);
    if (!status.ok()) {
      // Tasks that never ran have not put these counters back.
      for (const TensorId counter : {d_.merge, d_.arrived}) {
        const Buffer buffer = executor_.TensorBuffer(counter);
        EVT_CHECK(executor_.Fill(buffer, 0, 0, buffer.bytes).ok());
      }
      return status;
    }
    outputs->results.resize(rows.size());
    EVT_CHECK(executor_
                  .Read(results_, 0, outputs->results.data(),
                        static_cast<int64_t>(rows.size() * sizeof(StepResult)))
                  .ok());
    for (StepResult& result : outputs->results) {
      // Behind the step's own tokens are those of earlier steps.
      std::fill(result.tokens + result.count, std::end(result.tokens), -1);
    }
    const size_t count = static_cast<size_t>(std::count_if(
        rows.begin(), rows.end(), [](const Row& r) { return r.sampling != kRowNone; }));
    outputs->logits.resize(count * static_cast<size_t>(d_.config.vocab));
    for (size_t i = 0; i < count; ++i) {
      EVT_CHECK(executor_
                    .Read(executor_.TensorBuffer(d_.logits),
                          static_cast<int64_t>(i) * d_.logits_stride * 4,
                          outputs->logits.data() + i * static_cast<size_t>(d_.config.vocab),
                          int64_t{d_.config.vocab} * 4)
                    .ok());
    }
    return status;
  }

 private:
  Buffer Allocate(int64_t bytes) {
    const absl::StatusOr<Buffer> buffer = executor_.AllocateBuffer(bytes);
    EVT_CHECK(buffer.ok());
    return *buffer;
  }
  void Write(const Buffer& to, const void* data) {
    EVT_CHECK(executor_.Write(to, 0, data, to.bytes).ok());
  }
  void Read(const Buffer& from, void* data) {
    EVT_CHECK(executor_.Read(from, 0, data, from.bytes).ok());
  }

  const Decoder& d_;
  Executor& executor_;
  int blocks_per_slot_ = 0;
  std::vector<uint32_t> blocks_;  // of all slots
  Buffer slots_, history_, tables_, rows_, results_;
  PoisonBytes poison_;
};

// A step with what it starts from and what one CPU worker makes of it.
struct RecordedStep {
  std::string name;
  std::vector<Row> rows;
  DecoderState before, after;
  DecoderOutputs outputs;
};

// Three sequences: a long one (attention in several chunks and parts), a short and a middle one;
// prefill in chunks and decode in the same steps.
inline std::vector<RecordedStep> RecordSteps(DecoderModel* model, int long_prompt) {
  CpuExecutorOptions options;
  options.workers = 1;
  options.placed = model->Placed();
  auto executor = MakeCpuExecutor(model->program(), options);
  EVT_CHECK(executor.ok());
  DecoderRig rig(model->decoder(), executor->get());
  std::vector<std::vector<int32_t>> prompts(3);
  const int lengths[] = {long_prompt, 6, 12};
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (int t = 0; t < lengths[i]; ++t)
      prompts[i].push_back((t * 37 + static_cast<int>(i) * 11) % model->decoder().config.vocab);
  }
  rig.Put(rig.Fresh(prompts));
  DecoderOutputs outputs;
  const u32 most = static_cast<u32>(model->decoder().limits.max_tokens);
  for (u32 left = static_cast<u32>(long_prompt) - 2; left > 0;) {
    const u32 chunk = std::min(left, most);
    EVT_CHECK(rig.Step({Row{0, chunk, 0, kRowNone}}, &outputs).ok());
    left -= chunk;
  }
  const Row decode0{0, kDeviceKnows, 0, kRowSample}, decode1{1, kDeviceKnows, 0, kRowSample},
      decode2{2, kDeviceKnows, 0, kRowSample};
  std::vector<RecordedStep> steps = {
      {"prefill", {{2, 9, 0, kRowNone}, {0, 2, 0, kRowSample}, {1, 6, 0, kRowSample}}, {}, {}, {}},
      {"mixed", {decode0, {2, 3, 0, kRowSample}, decode1}, {}, {}, {}},
      {"decode", {decode1, decode0, decode2}, {}, {}, {}},
      {"alone", {decode0}, {}, {}, {}}};
  for (RecordedStep& step : steps) {
    step.before = rig.Get();
    rig.Poison();
    const absl::Status status = rig.Step(step.rows, &step.outputs);
    EVT_CHECK(status.ok());
    step.after = rig.Get();
    for (float logit : step.outputs.logits) EVT_CHECK(logit == logit);  // no NaN came through
  }
  return steps;
}

}  // namespace eventide
