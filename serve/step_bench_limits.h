// What the shapes that a StepBench measures need: rows, tokens, KV blocks, and which of them make
// no sense. Included by the bench itself only.
#pragma once

#include "serve/step_bench.h"

namespace eventide {

// Decode rows continue by themselves for so long before their context is reset.
inline constexpr int kFreeSteps = 16;

int RowTokens(const StepBenchOptions& options);  // of a decode row, drafts included
int RowsOf(const StepShape& shape);              // the chunk's included
// KV blocks of each decode row; of all rows.
int64_t BlocksOf(const ModelConfig& config, const StepBenchOptions& options,
                 const StepShape& shape);
int64_t BlocksOfAll(const ModelConfig& config, const StepBenchOptions& options,
                    const StepShape& shape);

absl::Status CheckStepBench(const ModelConfig& config, const StepBenchOptions& options);
// Rows, tokens, outputs, lengths and blocks that all shapes fit in.
void SetShapeLimits(const ModelConfig& config, const StepBenchOptions& options,
                    DecoderLimits* limits);

}  // namespace eventide
