// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace moebius {

/// How one request chooses its tokens. Defaults are greedy and change nothing.
struct SamplingParams {
  double temperature = 0;         // [0, 1000]; 0 is greedy
  int64_t top_k = 0;              // >= 0; 0 or >= vocabulary: off
  double top_p = 1;               // [0, 1]; 1: off; 0 keeps the best candidate alone
  double min_p = 0;               // [0, 1]; 0: off; 1 keeps the best candidates alone
  double repetition_penalty = 1;  // (0, 100]; 1: off
  double presence_penalty = 0;    // [-2, 2]
  double frequency_penalty = 0;   // [-2, 2]
  std::vector<std::pair<int64_t, double>> logit_bias;  // (token id, [-100, 100]); ids distinct
  uint64_t seed = 0;
  int64_t num_logprobs = 0;  // best candidates to report; beyond the vocabulary: all of it
};

/// A token and its natural log-probability.
struct RankedToken {
  int64_t token_id = 0;
  float logprob = 0;
};

}  // namespace moebius
