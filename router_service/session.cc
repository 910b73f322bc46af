// SPDX-License-Identifier: Apache-2.0
#include "router_service/session.h"

#include <algorithm>
#include <utility>

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

absl::Duration DeadlineOf(const GenerateRequest& request, absl::Duration now) {
  return request.deadline.has_value() ? now + *request.deadline : absl::InfiniteDuration();
}

bool UsesCounts(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
         sampling.frequency_penalty != 0;
}

}  // namespace

Session::Session(SessionId id, AdmittedRequest admitted, const GenerateRequest& request,
                 const Tokenizer* tokenizer, std::shared_ptr<GenerateStream> stream,
                 absl::Duration now)
    : id_(id),
      admitted_(std::move(admitted)),
      prompt_length_(static_cast<int64_t>(admitted_.prompt.size())),
      recompute_after_(request.recompute_after.value_or(-1)),
      tokenizer_(tokenizer),
      submitted_at_(now),
      deadline_(DeadlineOf(request, now)),
      stream_(std::move(stream)),
      tokens_(admitted_.prompt),
      stop_matcher_(admitted_.stop),
      told_logits_digest_(logits_hash_.Digest()),
      told_tokens_digest_(tokens_hash_.Digest()) {
  if (UsesCounts(admitted_.sampling)) counts_.AddPrompt(request.token_ids);
}

absl::Duration Session::UpdatePause(absl::Duration now) {
  if (stream_->HasRoom()) {
    paused_since_ = absl::InfiniteDuration();
    return absl::ZeroDuration();
  }
  paused_since_ = std::min(paused_since_, now);
  return now - paused_since_;
}

SessionDemand Session::Demand() const {
  SessionDemand demand;
  demand.session = id_;
  demand.priority = priority();
  demand.arrival = arrival();
  demand.pending_rows = num_pending();
  demand.prompt_rows = std::max<int64_t>(0, prompt_length_ - num_run_);
  demand.decoding = num_run_ >= prompt_length_ && num_pending() == 1;
  demand.paused = paused_since_ != absl::InfiniteDuration();
  return demand;
}

void Session::AppendRows(int64_t num_rows, StepRequest* step) const {
  MOEBIUS_CHECK(num_rows >= 1 && num_rows <= num_pending());
  SessionRows rows;
  rows.session = id_;
  rows.row_begin = step->plan.num_rows;
  rows.num_rows = num_rows;
  rows.position_begin = num_run_;
  rows.prompt_length = prompt_length_;
  step->plan.sessions.push_back(rows);
  step->plan.num_rows += num_rows;
  const auto first = tokens_.begin() + num_run_;
  step->token_ids.insert(step->token_ids.end(), first, first + num_rows);
  if (num_rows == num_pending()) step->logit_rows.push_back(rows.row_end() - 1);
}

void Session::OnAdmitted(absl::Duration now) {
  admitted_at_ = now;
  timing_.queue_seconds = absl::ToDoubleSeconds(now - submitted_at_);
  if (trace_ != nullptr) trace_->OnAdmitted();
}

void Session::OnRowsDone(int64_t num_rows, const RowsOutcome& outcome, const StepFigures& figures) {
  ++(Demand().decoding ? timing_.decode_steps : timing_.prefill_steps);
  timing_.figures.Add(figures);
  effects_.Add(outcome.effects);
  num_run_ += num_rows;
  MOEBIUS_CHECK_LE(num_run_, static_cast<int64_t>(tokens_.size()));
}

absl::Status Session::AcceptLogits(absl::Span<const float> logits, Sampler& sampler,
                                   absl::Duration now) {
  MOEBIUS_CHECK_EQ(num_pending(), 0);
  SamplingParams sampling = admitted_.sampling;
  // A chosen token's own log-probability comes with the ranking alone.
  if (admitted_.wants_logprobs) {
    sampling.num_logprobs = std::max<int64_t>(1, sampling.num_logprobs);
  }
  MOEBIUS_ASSIGN_OR_RETURN(
      SampledToken sampled,
      sampler.Sample(logits, sampling, &counts_, static_cast<int64_t>(tokens_.size())));
  const int32_t token_id = static_cast<int32_t>(sampled.token_id);
  tokens_.push_back(token_id);
  if (UsesCounts(sampling)) counts_.AddGenerated(token_id);
  logits_hash_.Update(logits.data(), logits.size() * sizeof(float));
  tokens_hash_.Update(&token_id, sizeof(token_id));

  HeldToken held;
  held.token_id = sampled.token_id;
  held.logits_digest = logits_hash_.Digest();
  held.tokens_digest = tokens_hash_.Digest();
  if (admitted_.wants_logprobs) {
    held.logprobs.chosen = {sampled.token_id, sampled.logprob};
    held.logprobs.top = std::move(sampled.ranked);
    held.logprobs.top.resize(
        std::min(held.logprobs.top.size(), static_cast<size_t>(admitted_.sampling.num_logprobs)));
  }
  held_.push_back(std::move(held));

  first_token_at_ = std::min(first_token_at_, now);
  last_token_at_ = now;
  stop_matcher_.Push(token_id, tokenizer_ == nullptr ? "" : tokenizer_->TokenBytes(token_id));
  if (stop_matcher_.stopped()) {
    finish_reason_ = FinishReason::kStop;
  } else if (num_generated() >= admitted_.max_tokens) {
    stop_matcher_.ReleaseAll();
    finish_reason_ = FinishReason::kLength;
  }
  return absl::OkStatus();
}

bool Session::TakeRecompute() {
  if (recomputed_ || recompute_after_ < 0 || num_generated() < recompute_after_) return false;
  if (finish_reason_ != FinishReason::kNone) return false;
  recomputed_ = true;
  num_run_ = 0;
  return true;
}

GenerateEvent Session::MakeEvent() {
  GenerateEvent event;
  event.request_id = admitted_.request_id;
  event.prompt_tokens = prompt_length_;
  event.prefilled_tokens = std::min(num_run_, prompt_length_);
  event.sampling = admitted_.sampling;
  event.max_tokens = admitted_.max_tokens;
  const int64_t released = stop_matcher_.num_released() - num_told_;
  for (int64_t index = 0; index < released; ++index) {
    HeldToken& held = held_[static_cast<size_t>(index)];
    event.token_ids.push_back(held.token_id);
    if (admitted_.wants_logprobs) event.logprobs.push_back(std::move(held.logprobs));
    told_logits_digest_ = held.logits_digest;
    told_tokens_digest_ = held.tokens_digest;
  }
  held_.erase(held_.begin(), held_.begin() + released);
  num_told_ += released;
  event.completion_tokens = num_told_;
  return event;
}

void Session::Deliver(absl::Duration now) {
  if (finish_reason_ != FinishReason::kNone) {
    Finish(now);
    return;
  }
  const bool news = stop_matcher_.num_released() > num_told_ || num_generated() == 0;
  if (!news || !stream_->HasRoom()) return;
  GenerateEvent event = MakeEvent();
  if (log_ != nullptr) log_->OnProgress(event);
  stream_->Push(event);
}

void Session::Finish(absl::Duration now) {
  MOEBIUS_CHECK(!finished_);
  finished_ = true;
  GenerateEvent event = MakeEvent();
  event.finished = true;
  event.finish_reason = finish_reason_;
  event.matched_stop = stop_matcher_.matched_stop();
  event.logits_hash = FormatHash64(told_logits_digest_);
  event.tokens_hash = FormatHash32(told_tokens_digest_);
  if (first_token_at_ != absl::InfiniteDuration()) {
    timing_.prefill_seconds = absl::ToDoubleSeconds(first_token_at_ - admitted_at_);
    timing_.decode_seconds = absl::ToDoubleSeconds(last_token_at_ - first_token_at_);
  } else if (timing_.prefill_steps > 0) {
    timing_.prefill_seconds = absl::ToDoubleSeconds(now - admitted_at_);
  }
  event.exactness = exactness();
  event.timing = timing_;
  EndTrace(absl::OkStatus());
  // First: who has the last event may ask the log.
  if (log_ != nullptr) {
    log_->OnProgress(event);
    log_->OnEnded(request_id(), absl::OkStatus());
  }
  stream_->Push(event);
  stream_->End(absl::OkStatus());
}

void Session::EndTrace(const absl::Status& status) {
  if (trace_ == nullptr) return;
  trace_->End({{"moebius.request_id", request_id()},
               {"moebius.prompt_tokens", prompt_length_},
               {"moebius.completion_tokens", num_told_},
               {"moebius.finish_reason", std::string(FinishReasonName(finish_reason_))}},
              status);
}

void Session::FinishAborted(absl::Duration now) {
  // What is held back is part of the answer as it stands.
  if (!stop_matcher_.stopped()) stop_matcher_.ReleaseAll();
  finish_reason_ = FinishReason::kAbort;
  Finish(now);
}

void Session::FinishFailed(const absl::Status& status) {
  MOEBIUS_CHECK(!finished_ && !status.ok());
  finished_ = true;
  EndTrace(status);
  if (log_ != nullptr) log_->OnEnded(request_id(), status);
  stream_->End(status);
}

}  // namespace moebius
