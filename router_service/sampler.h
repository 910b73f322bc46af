// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/api/sampling.h"

namespace moebius {

/// INVALID_ARGUMENT names the field, its value and what is allowed (NaN never is).
absl::Status ValidateSamplingParams(const SamplingParams& params, int64_t vocab_size);

/// How often each token occurred in one request. Not thread-safe.
class TokenCounts {
 public:
  struct Entry {
    int64_t token_id = 0;
    int64_t in_prompt = 0;
    int64_t generated = 0;
  };
  void AddPrompt(absl::Span<const int64_t> token_ids);
  void AddGenerated(int64_t token_id);
  /// Ascending by token id.
  absl::Span<const Entry> entries() const { return entries_; }

 private:
  Entry& At(int64_t token_id);
  std::vector<Entry> entries_;
};

/// One drawn token. Log-probabilities are those of the model: of the given logits at temperature 1,
/// before penalties and biases.
struct SampledToken {
  int64_t token_id = 0;
  float logprob = 0;                // of token_id; only computed where num_logprobs > 0
  std::vector<RankedToken> ranked;  // the num_logprobs best, descending, ties by lowest id
};

/// Draws tokens from logits, in one fixed order of steps:
///
///   1 repetition penalty   of prompt and generated ids: logit > 0 ? logit / r : logit · r
///   2 frequency, presence  of generated ids: logit -= count · f + p
///   3 logit_bias           logit += bias
///   4 temperature          0: the largest logit, lowest id; else weight e^((logit - max) / t)
///   5 top_k                the k largest by (logit descending, id ascending)
///   6 top_p                of these the shortest prefix in that order with mass >= top_p
///   7 min_p                of these all with weight >= min_p · largest weight
///   8 draw                 u from (seed, position) alone, times the mass that is left, walked in
///                          ascending id
///
/// Weights are fp32 by kernels/math.h, their sums fp64 in ascending id (4, 8) or in the order of 5
/// (6): the same bits everywhere, whoever else is in the batch. At least one candidate always
/// stays. Filters that are off cost nothing.
///
/// Holds scratch of the vocabulary's size: one per thread. Not thread-safe. Runs in the executor's
/// float environment.
class Sampler {
 public:
  /// `logits` fp32 [vocab_size]. `position`: of the token to be drawn, in the request's sequence;
  /// prompt tokens count. `counts` may be null where the penalties are off.
  /// The params must be valid. INVALID_ARGUMENT for a logit that is not finite.
  absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits, const SamplingParams& params,
                                      const TokenCounts* counts, int64_t position);

 private:
  struct Candidate {
    float logit = 0;
    int32_t token_id = 0;
    float weight = 0;
  };
  void Adjust(const SamplingParams& params, const TokenCounts* counts);
  void KeepLikely(const SamplingParams& params);
  int64_t Draw(const SamplingParams& params, int64_t position);
  void Rank(absl::Span<const float> logits, int64_t num_logprobs, SampledToken* sampled);

  std::vector<float> logits_;  // adjusted
  std::vector<Candidate> candidates_;
  std::vector<int32_t> order_;  // of Rank
};

}  // namespace moebius
