// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/base/executor.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/model_config.h"
#include "moebius/tensor/buffer.h"
#include "node/forced_logits.h"
#include "node/reference_attention.h"
#include "node/reference_ffn.h"
#include "node/reference_linear.h"
#include "node/reference_rope.h"

namespace moebius {

/// Weights of one layer of the reference path.
struct ReferenceLayer {
  std::vector<float> attention_norm;  // [H]
  ReferenceAttentionWeights attention;
  std::vector<float> ffn_norm;  // [H]
  ReferenceFfnWeights ffn;
};

/// Every family's forward pass in fp32 throughout, as plainly as it can be said: the measure of the
/// fast path and of itself against other implementations, never what serves. Weights are held as
/// stored, widened to fp32 (4 bytes a parameter, all of them in memory). It shares no arithmetic
/// with the kernels but Exp, and takes libm where it likes: none of it reaches a served answer, and
/// its bits may differ between machines.
///
/// Immutable after Load; thread-safe.
class ReferenceModel {
 public:
  /// Reads all weights; the group fill is that of `checkpoint.numerics()`. Open the checkpoint with
  /// `reads_as_stored` to allow F16 and F32 files. Failures are those of Checkpoint::LoadFloat.
  static absl::StatusOr<std::unique_ptr<const ReferenceModel>> Load(const Checkpoint& checkpoint);

  const ModelConfig& config() const { return config_; }
  GroupFill group_fill() const { return group_fill_; }
  const std::vector<ReferenceLayer>& layers() const { return layers_; }
  const ReferenceRope& rope() const { return rope_; }
  FloatRows embedding() const { return embedding_.rows(); }  // [vocab, H]
  const std::vector<float>& final_norm() const { return final_norm_; }
  const ReferenceLinear& head() const { return head_; }

 private:
  ReferenceModel() = default;

  ModelConfig config_;
  GroupFill group_fill_ = GroupFill::kNegativeInfinity;
  RowBatch<float> embedding_;
  std::vector<ReferenceLayer> layers_;
  std::vector<float> final_norm_;
  ReferenceLinear head_;
  ReferenceRope rope_;
};

/// One token sequence that the reference path extends, with its keys and values. Not thread-safe.
class ReferenceSequence {
 public:
  /// Both must outlive the sequence.
  ReferenceSequence(const ReferenceModel& model, Executor& executor);

  /// Appends `token_ids`, the first time as the prompt, and returns their choices, and logits of
  /// `rows`: indices into `token_ids`, ascending, distinct; empty keeps all. INVALID_ARGUMENT, with
  /// nothing appended, for an id outside the vocabulary, a row out of range or a sequence longer
  /// than the model's positions; DATA_LOSS when an activation is not finite: the sequence is then
  /// of no more use.
  absl::StatusOr<ForcedLogits> Append(absl::Span<const int64_t> token_ids,
                                      absl::Span<const int64_t> rows);

  /// Appends `token_ids`, then the most likely token `num_tokens` times, and
  /// returns those. The end-of-text token ends nothing here.
  absl::StatusOr<std::vector<int64_t>> ContinueGreedily(absl::Span<const int64_t> token_ids,
                                                        int64_t num_tokens);

  int64_t num_tokens() const { return num_tokens_; }

 private:
  absl::Status Validate(absl::Span<const int64_t> token_ids, absl::Span<const int64_t> rows) const;
  void RunAttention(size_t layer, MutableFloatRows residual);
  void RunFfn(size_t layer, MutableFloatRows residual, ForcedLogits& forced);
  void RunHead(FloatRows residual, ForcedLogits& forced);

  const ReferenceModel& model_;
  Executor& executor_;
  std::vector<ReferenceKvCache> caches_;  // [num_layers]
  int64_t num_tokens_ = 0;
};

/// The id of the largest logit, the lowest of equals.
int64_t MostLikelyToken(absl::Span<const float> logits);

/// The whole of `token_ids` from position 0; a sequence for one call.
absl::StatusOr<ForcedLogits> ForwardReference(const ReferenceModel& model, Executor& executor,
                                              absl::Span<const int64_t> token_ids,
                                              absl::Span<const int64_t> rows);

}  // namespace moebius
