#include "serve/step_bench_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace eventide {
namespace {

constexpr int kRoom = kFreeSteps + 2;  // tokens beyond a decode row's

int64_t ChunkLength(const StepShape& shape) {
  return shape.chunk == 0 ? 0 : int64_t{shape.chunk_context} + shape.chunk + kChunkRoom;
}

absl::Status CheckChunk(const ModelConfig& config, const StepBenchOptions& options,
                        const StepShape& shape) {
  if (shape.chunk < 0 || shape.chunk_context < 0 || ChunkLength(shape) > config.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("a chunk of ", shape.chunk, " tokens behind ",
                                                   shape.chunk_context, "; the model takes ",
                                                   config.max_positions - kChunkRoom, " in all"));
  }
  if (shape.chunk > 0 && options.drafts > 0) {
    return absl::InvalidArgumentError("a chunk beside rows that carry drafts is not measured");
  }
  return absl::OkStatus();
}

}  // namespace

int StepBench::Cached(const ModelConfig& config, int row_tokens, int context) {
  // The slot must not reach its length limit by the tokens that are appended, or it would end.
  return std::min(context, config.max_positions - row_tokens - kRoom);
}

int RowTokens(const StepBenchOptions& options) {
  return options.tokens_per_row + options.drafts;
}

int64_t BlocksOf(const ModelConfig& config, const StepBenchOptions& options,
                 const StepShape& shape) {
  const int64_t tokens = int64_t{StepBench::Cached(config, RowTokens(options), shape.context)} +
                         RowTokens(options) + kRoom;
  return (tokens + options.block_size - 1) / options.block_size;
}

int64_t BlocksOfAll(const ModelConfig& config, const StepBenchOptions& options,
                    const StepShape& shape) {
  return shape.batch * BlocksOf(config, options, shape) +
         (ChunkLength(shape) + options.block_size - 1) / options.block_size;
}

int RowsOf(const StepShape& shape) {
  return shape.batch + (shape.chunk > 0 ? 1 : 0);
}

absl::Status CheckStepBench(const ModelConfig& config, const StepBenchOptions& options) {
  if (options.shapes.empty()) return absl::InvalidArgumentError("no batch or context to measure");
  if (options.tokens_per_row < 1 || options.tokens_per_row > 16) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.tokens_per_row, " tokens per row; 1 to 16 are measured"));
  }
  if (options.drafts < 0 || options.drafts > static_cast<int>(kMaxDraftTokens) ||
      (options.drafts > 0 && options.tokens_per_row > 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.drafts, " drafts with ", options.tokens_per_row,
                     " tokens per row; rows of one token carry 0 to ", kMaxDraftTokens));
  }
  if (options.draft_model != nullptr && options.drafts == 0) {
    return absl::InvalidArgumentError("a draft model, but no drafts");
  }
  if (options.block_size < 1) return absl::InvalidArgumentError("the block size must be positive");
  const int drafts_positions =
      options.draft_model != nullptr ? options.draft_model->config().max_positions : INT32_MAX;
  for (const StepShape& shape : options.shapes) {
    if (RowsOf(shape) < 1 || shape.batch < 0 || RowsOf(shape) > 1024) {
      return absl::InvalidArgumentError(
          absl::StrCat("a batch of ", shape.batch, "; 1 to 1024 rows"));
    }
    RETURN_IF_ERROR(CheckChunk(config, options, shape));
    if (shape.batch == 0) continue;
    if (shape.context < 1 || shape.context > config.max_positions ||
        StepBench::Cached(config, RowTokens(options), shape.context) < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a context of ", shape.context, " tokens; the model takes 1 to ", config.max_positions));
    }
    if (shape.context > drafts_positions - RowTokens(options) - kRoom) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a context of ", shape.context, " tokens leaves the draft model no room: it has ",
          drafts_positions, " positions"));
    }
  }
  return absl::OkStatus();
}

int64_t StepKvMemory(const ModelConfig& config, const StepBenchOptions& options,
                     const StepShape& shape) {
  int64_t block = KvBlockBytes(config, options.storage, options.block_size);
  if (options.draft_model != nullptr) {
    block += KvBlockBytes(options.draft_model->config(), options.draft_storage, options.block_size);
  }
  return BlocksOfAll(config, options, shape) * block;
}

void SetShapeLimits(const ModelConfig& config, const StepBenchOptions& options,
                    DecoderLimits* limits) {
  limits->max_rows = 0;
  limits->max_model_len = 0;
  limits->max_tokens = 0;
  limits->max_outputs = 0;
  for (const StepShape& shape : options.shapes) {
    const int decoded = shape.batch * RowTokens(options);
    const int cached = StepBench::Cached(config, RowTokens(options), shape.context);
    const int length = shape.batch > 0 ? cached + RowTokens(options) + kRoom : 0;
    limits->max_rows = std::max(limits->max_rows, RowsOf(shape));
    limits->max_model_len =
        std::max({limits->max_model_len, length, static_cast<int>(ChunkLength(shape))});
    limits->num_blocks = std::max(limits->num_blocks, BlocksOfAll(config, options, shape));
    limits->max_tokens = std::max(limits->max_tokens, decoded + shape.chunk);
    limits->max_outputs = std::max(limits->max_outputs, decoded + (shape.chunk > 0 ? 1 : 0));
  }
}

}  // namespace eventide
