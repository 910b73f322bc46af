// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/attention/attention_method.h"
#include "moebius/base/status.h"
#include "moebius/wire/api/router_codec.h"

namespace moebius {
namespace {

namespace pb = router_pb;

// Sets an optional field, or reads one.
#define MOEBIUS_SET_OPTIONAL(field) \
  if (request.field.has_value()) out->set_##field(*request.field)
#define MOEBIUS_READ_OPTIONAL(field) \
  if (in.has_##field()) request.field = in.field()

pb::FinishReason ProtoOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return pb::FINISH_REASON_NONE;
    case FinishReason::kStop:
      return pb::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return pb::FINISH_REASON_LENGTH;
    case FinishReason::kAbort:
      return pb::FINISH_REASON_ABORT;
  }
  return pb::FINISH_REASON_UNSPECIFIED;
}

absl::StatusOr<FinishReason> FinishReasonOf(pb::FinishReason reason) {
  switch (reason) {
    case pb::FINISH_REASON_NONE:
      return FinishReason::kNone;
    case pb::FINISH_REASON_STOP:
      return FinishReason::kStop;
    case pb::FINISH_REASON_LENGTH:
      return FinishReason::kLength;
    case pb::FINISH_REASON_ABORT:
      return FinishReason::kAbort;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("finish_reason ", static_cast<int>(reason), " is unknown"));
  }
}

void SetRanked(const RankedToken& token, pb::RankedToken* out) {
  out->set_token_id(token.token_id);
  out->set_logprob(token.logprob);
}

RankedToken RankedOf(const pb::RankedToken& in) { return {in.token_id(), in.logprob()}; }

void SetTraffic(const PortTraffic& traffic, pb::PortTraffic* out) {
  out->set_messages(traffic.messages);
  out->set_bytes_out(traffic.bytes_out);
  out->set_bytes_back(traffic.bytes_back);
}

PortTraffic TrafficOf(const pb::PortTraffic& in) {
  return {in.messages(), in.bytes_out(), in.bytes_back()};
}

void SetTiming(const GenerateTiming& timing, pb::GenerateTiming* out) {
  out->set_queue_seconds(timing.queue_seconds);
  out->set_prefill_seconds(timing.prefill_seconds);
  out->set_decode_seconds(timing.decode_seconds);
  out->set_prefill_steps(timing.prefill_steps);
  out->set_decode_steps(timing.decode_steps);
  ToProto(timing.figures, out->mutable_figures());
}

GenerateTiming TimingOf(const pb::GenerateTiming& in) {
  GenerateTiming timing;
  timing.queue_seconds = in.queue_seconds();
  timing.prefill_seconds = in.prefill_seconds();
  timing.decode_seconds = in.decode_seconds();
  timing.prefill_steps = in.prefill_steps();
  timing.decode_steps = in.decode_steps();
  timing.figures = FromProto(in.figures());
  return timing;
}

}  // namespace

void ToProto(const Exactness& exactness, pb::Exactness* out) {
  out->set_exact(exactness.exact());
  out->set_dropped(exactness.dropped);
  out->set_rerouted(exactness.rerouted);
  for (const auto& [layer, expert] : exactness.missing_experts) {
    pb::LayerExpert* missing = out->add_missing_experts();
    missing->set_layer(layer);
    missing->set_expert(expert);
  }
  out->set_bias_override(exactness.bias_override);
  for (const std::string& reason : exactness.reasons) out->add_reasons(reason);
}

Exactness FromProto(const pb::Exactness& in) {
  Exactness exactness;
  exactness.dropped = in.dropped();
  exactness.rerouted = in.rerouted();
  for (const pb::LayerExpert& missing : in.missing_experts()) {
    exactness.missing_experts.emplace_back(missing.layer(), missing.expert());
  }
  exactness.bias_override = in.bias_override();
  exactness.reasons.assign(in.reasons().begin(), in.reasons().end());
  if (!in.exact() && exactness.exact()) exactness.reasons.push_back("the router gives no reason");
  return exactness;
}

void ToProto(const StepFigures& figures, pb::StepFigures* out) {
  out->set_embed_seconds(figures.embed_seconds);
  out->set_attention_seconds(figures.attention_seconds);
  out->set_norm_seconds(figures.norm_seconds);
  out->set_gate_seconds(figures.gate_seconds);
  out->set_plan_seconds(figures.plan_seconds);
  out->set_expert_seconds(figures.expert_seconds);
  out->set_combine_seconds(figures.combine_seconds);
  out->set_head_seconds(figures.head_seconds);
  out->set_num_rows(figures.num_rows);
  out->set_assignments(figures.assignments);
  out->set_dropped(figures.dropped);
  out->set_rerouted(figures.rerouted);
  out->set_combined(figures.combined);
  out->set_conservation_errors(figures.conservation_errors);
  out->set_dispatched_rows(figures.dispatched_rows);
  out->set_reply_rows(figures.reply_rows);
  out->set_group_fill_mismatches(figures.group_fill_mismatches);
  out->set_stall_seconds(figures.stall_seconds);
  out->set_resends(figures.resends);
  out->set_resent_rows(figures.resent_rows);
  SetTraffic(figures.attention_traffic, out->mutable_attention_traffic());
  SetTraffic(figures.expert_traffic, out->mutable_expert_traffic());
  out->set_naive_messages(figures.naive_messages);
  out->set_naive_bytes(figures.naive_bytes);
  for (const AttentionMethod method : kAttentionMethods) {
    if ((figures.attention_methods >> static_cast<int>(method) & 1) == 0) continue;
    out->add_attention_methods(std::string(AttentionMethodName(method)));
  }
}

StepFigures FromProto(const pb::StepFigures& in) {
  StepFigures figures;
  figures.embed_seconds = in.embed_seconds();
  figures.attention_seconds = in.attention_seconds();
  figures.norm_seconds = in.norm_seconds();
  figures.gate_seconds = in.gate_seconds();
  figures.plan_seconds = in.plan_seconds();
  figures.expert_seconds = in.expert_seconds();
  figures.combine_seconds = in.combine_seconds();
  figures.head_seconds = in.head_seconds();
  figures.num_rows = in.num_rows();
  figures.assignments = in.assignments();
  figures.dropped = in.dropped();
  figures.rerouted = in.rerouted();
  figures.combined = in.combined();
  figures.conservation_errors = in.conservation_errors();
  figures.dispatched_rows = in.dispatched_rows();
  figures.reply_rows = in.reply_rows();
  figures.group_fill_mismatches = in.group_fill_mismatches();
  figures.stall_seconds = in.stall_seconds();
  figures.resends = in.resends();
  figures.resent_rows = in.resent_rows();
  figures.attention_traffic = TrafficOf(in.attention_traffic());
  figures.expert_traffic = TrafficOf(in.expert_traffic());
  figures.naive_messages = in.naive_messages();
  figures.naive_bytes = in.naive_bytes();
  for (const std::string& name : in.attention_methods()) {
    AttentionMethod method = AttentionMethod::kLocal;
    // Of a newer router: unknown here.
    if (ParseAttentionMethod(name, &method)) {
      figures.attention_methods |= uint32_t{1} << static_cast<int>(method);
    }
  }
  return figures;
}

void ToProto(const SamplingParams& sampling, pb::EffectiveSampling* out) {
  out->set_temperature(sampling.temperature);
  out->set_top_k(sampling.top_k);
  out->set_top_p(sampling.top_p);
  out->set_min_p(sampling.min_p);
  out->set_repetition_penalty(sampling.repetition_penalty);
  out->set_presence_penalty(sampling.presence_penalty);
  out->set_frequency_penalty(sampling.frequency_penalty);
  out->set_seed(sampling.seed);
}

SamplingParams FromProto(const pb::EffectiveSampling& in) {
  SamplingParams sampling;
  sampling.temperature = in.temperature();
  sampling.top_k = in.top_k();
  sampling.top_p = in.top_p();
  sampling.min_p = in.min_p();
  sampling.repetition_penalty = in.repetition_penalty();
  sampling.presence_penalty = in.presence_penalty();
  sampling.frequency_penalty = in.frequency_penalty();
  sampling.seed = in.seed();
  return sampling;
}

void ToProto(const GenerateRequest& request, pb::GenerateRequest* out) {
  out->set_request_id(request.request_id);
  out->mutable_token_ids()->Add(request.token_ids.begin(), request.token_ids.end());
  MOEBIUS_SET_OPTIONAL(max_tokens);
  MOEBIUS_SET_OPTIONAL(temperature);
  MOEBIUS_SET_OPTIONAL(top_k);
  MOEBIUS_SET_OPTIONAL(top_p);
  MOEBIUS_SET_OPTIONAL(min_p);
  MOEBIUS_SET_OPTIONAL(repetition_penalty);
  MOEBIUS_SET_OPTIONAL(presence_penalty);
  MOEBIUS_SET_OPTIONAL(frequency_penalty);
  MOEBIUS_SET_OPTIONAL(seed);
  MOEBIUS_SET_OPTIONAL(logprobs);
  for (const auto& [token_id, bias] : request.logit_bias) {
    pb::LogitBias* entry = out->add_logit_bias();
    entry->set_token_id(token_id);
    entry->set_bias(bias);
  }
  out->mutable_stop_token_ids()->Add(request.stop_token_ids.begin(), request.stop_token_ids.end());
  for (const std::string& stop : request.stop) out->add_stop(stop);
  out->set_ignore_eos(request.ignore_eos);
  out->set_priority(request.priority);
  out->set_config_hash(request.config_hash);
  if (request.deadline.has_value()) {
    // Rounded up: a positive deadline stays one.
    out->set_deadline_ms(absl::ToInt64Milliseconds(*request.deadline + absl::Microseconds(999)));
  }
}

absl::StatusOr<GenerateRequest> FromProto(const pb::GenerateRequest& in) {
  GenerateRequest request;
  request.request_id = in.request_id();
  request.token_ids.assign(in.token_ids().begin(), in.token_ids().end());
  MOEBIUS_READ_OPTIONAL(max_tokens);
  MOEBIUS_READ_OPTIONAL(temperature);
  MOEBIUS_READ_OPTIONAL(top_k);
  MOEBIUS_READ_OPTIONAL(top_p);
  MOEBIUS_READ_OPTIONAL(min_p);
  MOEBIUS_READ_OPTIONAL(repetition_penalty);
  MOEBIUS_READ_OPTIONAL(presence_penalty);
  MOEBIUS_READ_OPTIONAL(frequency_penalty);
  MOEBIUS_READ_OPTIONAL(seed);
  MOEBIUS_READ_OPTIONAL(logprobs);
  for (const pb::LogitBias& entry : in.logit_bias()) {
    request.logit_bias.emplace_back(entry.token_id(), entry.bias());
  }
  request.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  request.stop.assign(in.stop().begin(), in.stop().end());
  request.ignore_eos = in.ignore_eos();
  request.priority = in.priority();
  request.config_hash = in.config_hash();
  if (in.has_deadline_ms()) {
    if (in.deadline_ms() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("deadline_ms is ", in.deadline_ms(), "; it must be at least 1"));
    }
    request.deadline = absl::Milliseconds(in.deadline_ms());
  }
  return request;
}

void ToProto(const GenerateEvent& event, pb::GenerateResponse* out) {
  out->set_request_id(event.request_id);
  out->mutable_token_ids()->Add(event.token_ids.begin(), event.token_ids.end());
  for (const PositionLogprobs& position : event.logprobs) {
    pb::PositionLogprobs* entry = out->add_logprobs();
    SetRanked(position.chosen, entry->mutable_chosen());
    for (const RankedToken& candidate : position.top) SetRanked(candidate, entry->add_top());
  }
  out->set_prompt_tokens(event.prompt_tokens);
  out->set_prefilled_tokens(event.prefilled_tokens);
  out->set_cached_tokens(event.cached_tokens);
  out->set_completion_tokens(event.completion_tokens);
  ToProto(event.sampling, out->mutable_sampling());
  out->mutable_sampling()->set_max_tokens(event.max_tokens);
  out->set_finish_reason(ProtoOf(event.finish_reason));
  if (!event.finished) return;
  out->set_matched_stop(event.matched_stop);
  ToProto(event.exactness, out->mutable_exactness());
  SetTiming(event.timing, out->mutable_timing());
  out->set_logits_hash(event.logits_hash);
  out->set_tokens_hash(event.tokens_hash);
}

absl::StatusOr<GenerateEvent> FromProto(const pb::GenerateResponse& in) {
  GenerateEvent event;
  event.request_id = in.request_id();
  event.token_ids.assign(in.token_ids().begin(), in.token_ids().end());
  for (const pb::PositionLogprobs& entry : in.logprobs()) {
    PositionLogprobs& position = event.logprobs.emplace_back();
    position.chosen = RankedOf(entry.chosen());
    for (const pb::RankedToken& candidate : entry.top()) {
      position.top.push_back(RankedOf(candidate));
    }
  }
  event.prompt_tokens = in.prompt_tokens();
  event.prefilled_tokens = in.prefilled_tokens();
  event.cached_tokens = in.cached_tokens();
  event.completion_tokens = in.completion_tokens();
  event.sampling = FromProto(in.sampling());
  event.max_tokens = in.sampling().max_tokens();
  MOEBIUS_ASSIGN_OR_RETURN(event.finish_reason, FinishReasonOf(in.finish_reason()));
  event.finished = event.finish_reason != FinishReason::kNone;
  event.matched_stop = in.matched_stop();
  if (event.finished) event.exactness = FromProto(in.exactness());
  event.timing = TimingOf(in.timing());
  event.logits_hash = in.logits_hash();
  event.tokens_hash = in.tokens_hash();
  return event;
}

}  // namespace moebius
