// SPDX-License-Identifier: Apache-2.0
#include "router_service/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::Status CheckPromptIds(absl::Span<const int64_t> ids, int64_t vocab_size) {
  if (ids.empty()) {
    return WithHint(Invalid("the prompt has no token ids; at least one is needed"),
                    "give a prompt, or begin with the model's BOS id");
  }
  for (size_t position = 0; position < ids.size(); ++position) {
    if (ids[position] < 0 || ids[position] >= vocab_size) {
      return WithHint(Invalid(absl::StrCat("token id ", ids[position], " at position ", position,
                                           " is outside the vocabulary of ", vocab_size)),
                      absl::StrCat("ids run from 0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> EffectiveMaxTokens(const GenerateRequest& request,
                                           const LeadOptions& options) {
  const int64_t prompt_tokens = static_cast<int64_t>(request.token_ids.size());
  const int64_t limit = options.max_positions;
  if (request.max_tokens.has_value() && *request.max_tokens < 1) {
    return Invalid(absl::StrCat("max_tokens is ", *request.max_tokens, "; it must be at least 1"));
  }
  if (prompt_tokens >= limit) {
    return WithHint(Invalid(absl::StrCat("the prompt has ", prompt_tokens, " tokens, the limit is ",
                                         limit, " for prompt and answer together")),
                    "shorten the prompt; nothing is cut off unasked");
  }
  if (options.schedule.whole_prompts) {
    MOEBIUS_RETURN_IF_ERROR(CheckFitsOneStep(prompt_tokens, options.schedule.prompt_rows()));
  }
  const int64_t room = limit - prompt_tokens;
  if (!request.max_tokens.has_value()) return std::min(options.default_max_tokens, room);
  if (*request.max_tokens > room) {
    return WithHint(
        Invalid(absl::StrCat("the prompt has ", prompt_tokens, " tokens and max_tokens is ",
                             *request.max_tokens, ", the limit is ", limit, " for both together")),
        absl::StrCat("shorten the prompt, or ask for max_tokens up to ", room));
  }
  return *request.max_tokens;
}

absl::Status FillSampling(const GenerateRequest& request, const LeadOptions& options,
                          uint64_t drawn_seed, AdmittedRequest* admitted) {
  SamplingParams& sampling = admitted->sampling;
  const SamplingParams& defaults = options.sampling;
  sampling.temperature = request.temperature.value_or(defaults.temperature);
  sampling.top_k = request.top_k.value_or(defaults.top_k);
  sampling.top_p = request.top_p.value_or(defaults.top_p);
  sampling.min_p = request.min_p.value_or(defaults.min_p);
  sampling.repetition_penalty = request.repetition_penalty.value_or(defaults.repetition_penalty);
  sampling.presence_penalty = request.presence_penalty.value_or(defaults.presence_penalty);
  sampling.frequency_penalty = request.frequency_penalty.value_or(defaults.frequency_penalty);
  sampling.logit_bias = request.logit_bias;
  sampling.seed = request.seed.value_or(drawn_seed);
  admitted->wants_logprobs = request.logprobs.has_value();
  sampling.num_logprobs = request.logprobs.value_or(0);
  const int64_t most = std::min(options.max_logprobs, options.vocab_size);
  if (sampling.num_logprobs > most) {
    return Invalid(
        absl::StrCat("logprobs is ", sampling.num_logprobs, "; it must be from 0 to ", most));
  }
  return ValidateSamplingParams(sampling, options.vocab_size);
}

absl::Status FillStops(const GenerateRequest& request, const LeadOptions& options,
                       AdmittedRequest* admitted) {
  if (static_cast<int64_t>(request.stop_token_ids.size()) > options.max_stop_token_ids) {
    return Invalid(absl::StrCat("there are ", request.stop_token_ids.size(),
                                " stop token ids, the limit is ", options.max_stop_token_ids));
  }
  if (static_cast<int64_t>(request.stop.size()) > options.max_stop_strings) {
    return Invalid(absl::StrCat("there are ", request.stop.size(), " stop strings, the limit is ",
                                options.max_stop_strings));
  }
  for (const std::string& stop : request.stop) {
    if (static_cast<int64_t>(stop.size()) > options.max_stop_bytes) {
      return Invalid(absl::StrCat("a stop string has ", stop.size(), " bytes, the limit is ",
                                  options.max_stop_bytes));
    }
  }
  StopRules& rules = admitted->stop;
  if (!request.ignore_eos) rules.eos_token_ids = options.eos_token_ids;
  for (const int64_t id : request.stop_token_ids) rules.token_sequences.push_back({id});
  rules.strings = request.stop;
  return ValidateStopRules(rules, options.vocab_size);
}

}  // namespace

absl::Status CheckFitsOneStep(int64_t prompt_tokens, int64_t step_rows) {
  if (prompt_tokens <= step_rows) return absl::OkStatus();
  return WithHint(
      Invalid(absl::StrCat("the prompt has ", prompt_tokens,
                           " tokens and goes in one step, as this model's attention is not causal; "
                           "a step holds ",
                           step_rows)),
      "shorten the prompt, or start a router with a larger --row-budget (and --chunk, if given)");
}

absl::StatusOr<AdmittedRequest> AdmitRequest(const GenerateRequest& request,
                                             const LeadOptions& options, const KvPool& pool,
                                             const std::string& drawn_id, uint64_t drawn_seed) {
  AdmittedRequest admitted;
  admitted.request_id = request.request_id.empty() ? drawn_id : request.request_id;
  if (static_cast<int64_t>(admitted.request_id.size()) > kMaxRequestIdBytes) {
    return Invalid(absl::StrCat("request_id has ", admitted.request_id.size(),
                                " bytes, the limit is ", kMaxRequestIdBytes));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckPromptIds(request.token_ids, options.vocab_size));
  MOEBIUS_ASSIGN_OR_RETURN(admitted.max_tokens, EffectiveMaxTokens(request, options));
  MOEBIUS_RETURN_IF_ERROR(FillSampling(request, options, drawn_seed, &admitted));
  MOEBIUS_RETURN_IF_ERROR(FillStops(request, options, &admitted));
  if (request.deadline.has_value() && *request.deadline <= absl::ZeroDuration()) {
    return absl::DeadlineExceededError("the deadline had passed before the request was queued");
  }

  // The last generated token is returned without being run: it needs no KV.
  const int64_t prompt_tokens = static_cast<int64_t>(request.token_ids.size());
  const int64_t kv_tokens = prompt_tokens + admitted.max_tokens - 1;
  admitted.kv_blocks = pool.BlocksFor(kv_tokens);
  if (admitted.kv_blocks > pool.num_blocks) {
    return WithHint(absl::ResourceExhaustedError(absl::StrCat("the request needs ", kv_tokens,
                                                              " KV slots, the pool has ",
                                                              pool.num_blocks * pool.block_tokens)),
                    "shorten the prompt, ask for fewer max_tokens, or give a larger --kv-budget");
  }
  admitted.prompt.assign(request.token_ids.begin(), request.token_ids.end());
  admitted.priority = request.priority;
  return admitted;
}

}  // namespace moebius
