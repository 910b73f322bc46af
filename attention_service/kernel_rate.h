// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "attention_service/attention_pipeline.h"
#include "attention_service/attention_weights.h"
#include "moebius/attention/cost_model.h"
#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// A model's attention of which only the heads are known: one layer, a narrow hidden row.
AttentionFacts FactsOfHeads(const AttentionHeads& heads, int64_t span);

/// What probes time of a model: one layer with a narrow hidden row, without biases and norms, and
/// causal, so that keys can come before timed rows.
AttentionFacts ProbeFactsOf(const AttentionFacts& facts, AttentionSum sum);
/// Its random weights, always the same.
AttentionLayerWeights MakeProbeLayer(const AttentionFacts& facts);

/// One layer of attention over random rows, to be timed. Rows of the prompt go in steps of 512.
/// Not thread-safe; calls come from outside the executor.
class AttentionProbe {
 public:
  /// With room for `max_tokens` of prompts that are timed and of keys before timed rows. Biases and
  /// norms are left out. What AttentionPipeline::Make refuses is refused here. Borrows `kernels`
  /// and `executor`.
  static absl::StatusOr<std::unique_ptr<AttentionProbe>> Make(const AttentionFacts& facts,
                                                              const Kernels& kernels,
                                                              Executor& executor,
                                                              int64_t max_tokens);

  /// Seconds of a prompt of so many tokens.
  absl::StatusOr<double> TimePrefill(int64_t num_tokens);
  /// Mean seconds of `num_rows` more prompt rows behind `num_keys`, for `duration` and at least
  /// once.
  absl::StatusOr<double> TimeChunk(int64_t num_keys, int64_t num_rows, absl::Duration duration);
  /// The same of one generated row.
  absl::StatusOr<double> TimeDecode(int64_t num_keys, absl::Duration duration);

 private:
  AttentionProbe() = default;
  absl::StatusOr<double> Step(SessionId session, int64_t begin, int64_t end, int64_t prompt_length);
  absl::Status Fill(int64_t num_tokens);
  absl::StatusOr<double> Repeat(int64_t begin, int64_t end, int64_t prompt_length,
                                absl::Duration duration);

  std::unique_ptr<AttentionPipeline> pipeline_;
  RowBatch<Bf16> rows_, out_;
  int64_t num_keys_ = 0;  // of the session whose keys are before timed rows
};

/// FLOP/s of the attention kernel for prompt rows of these heads, on all threads of `executor`:
/// of short chunks over a thousand random keys. Takes tenths of a second. What AttentionProbe
/// refuses is refused here.
absl::StatusOr<double> MeasureKernelRate(const AttentionFacts& facts, const Kernels& kernels,
                                         Executor& executor);

}  // namespace moebius
