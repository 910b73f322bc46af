// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/api/sampling.h"
#include "moebius/api/step_figures.h"

namespace moebius {

/// One request, in token ids. A sampling field that is unset takes the model's default
/// (generation_config.json), then the server's; zero is taken literally.
struct GenerateRequest {
  std::string request_id;          // empty: one is drawn
  std::vector<int64_t> token_ids;  // the prompt, >= 1 id, each in [0, vocab_size)

  std::optional<int64_t> max_tokens;         // >= 1; unset: LeadOptions::default_max_tokens
  std::optional<double> temperature;         // >= 0; 0 is greedy
  std::optional<int64_t> top_k;              // 0 or >= vocab_size: off
  std::optional<double> top_p;               // [0, 1]; 0 keeps the best candidate alone
  std::optional<double> min_p;               // [0, 1]; 0: off
  std::optional<double> repetition_penalty;  // (0, 100]; 1: off
  std::optional<double> presence_penalty;    // [-2, 2]; 0: off
  std::optional<double> frequency_penalty;   // [-2, 2]; 0: off
  std::vector<std::pair<int64_t, double>> logit_bias;  // (token id, [-100, 100]); ids distinct
  std::optional<uint64_t> seed;         // unset: drawn, and returned in the first event
  std::vector<int64_t> stop_token_ids;  // end the answer before this token
  std::vector<std::string> stop;        // end the answer before this text; needs a tokenizer
  std::optional<int64_t> logprobs;      // so many best candidates beside the chosen token
  bool ignore_eos = false;

  std::string config_hash;                 // that the caller means; empty: any
  int32_t priority = 0;                    // higher first
  std::optional<absl::Duration> deadline;  // from submission
  /// After that many generated tokens the session's KV is dropped and rebuilt from prompt and
  /// generated tokens, as after a lost attention rank. The answer's bits must not change.
  std::optional<int64_t> recompute_after;
  /// W3C Trace Context of the caller's span, beside the request (metadata of the call). Empty or
  /// malformed: none.
  std::string traceparent;
  /// Who asks, for the log: the client whose key it has, else the host that it comes from. Beside
  /// the request, too.
  std::string caller;
  friend bool operator==(const GenerateRequest&, const GenerateRequest&) = default;
};

/// Whether both ask for the same answer: all fields but deadline, priority, traceparent
/// and caller are equal.
bool AsksTheSame(const GenerateRequest& a, const GenerateRequest& b);

enum class FinishReason { kNone, kStop, kLength, kAbort };
absl::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "abort"

/// How exact an answer is (docs/architecture.md, "Exactness").
struct Exactness {
  int64_t dropped = 0;                                       // assignments, by capacity
  int64_t rerouted = 0;                                      // assignments, by capacity
  std::vector<std::pair<int32_t, int32_t>> missing_experts;  // (layer, expert)
  bool bias_override = false;
  std::vector<std::string> reasons;
  bool exact() const {
    return dropped == 0 && rerouted == 0 && missing_experts.empty() && !bias_override &&
           reasons.empty();
  }
};

/// The chosen token and the best candidates, descending.
struct PositionLogprobs {
  RankedToken chosen;
  std::vector<RankedToken> top;
};

/// What the request took, by the monotonic clock.
struct GenerateTiming {
  double queue_seconds = 0;    // submission to admission
  double prefill_seconds = 0;  // admission to the first token
  double decode_seconds = 0;   // first token to the last
  int64_t prefill_steps = 0;
  int64_t decode_steps = 0;
  StepFigures figures;  // of the steps that it took part in, whole steps
};

/// News of a request. The concatenation of `token_ids` over all events is the answer: the end
/// marker is included, a matched stop sequence and what follows it is not.
struct GenerateEvent {
  std::string request_id;
  std::vector<int64_t> token_ids;          // new ones; may be empty (progress, the last event)
  std::vector<PositionLogprobs> logprobs;  // beside token_ids where asked for
  int64_t prompt_tokens = 0;
  int64_t prefilled_tokens = 0;  // of the prompt, so far
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;  // so far, = all token_ids

  // Effective values, in every event.
  SamplingParams sampling;
  int64_t max_tokens = 0;

  // In the last event.
  bool finished = false;
  FinishReason finish_reason = FinishReason::kNone;
  std::string matched_stop;  // the stop string, or "eos 257", or "token 5"
  std::string logits_hash;   // XXH3-64 over one raw fp32 logits row per generated token
  std::string tokens_hash;   // low 32 bits of XXH3-64 over the ids as little-endian int32
  Exactness exactness;
  GenerateTiming timing;
};

}  // namespace moebius
