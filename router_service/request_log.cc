// SPDX-License-Identifier: Apache-2.0
#include "router_service/request_log.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"

namespace moebius {

void RequestLog::OnQueued(const std::string& request_id, const std::string& trace_id,
                          const std::string& caller) {
  MutexLock lock(mutex_);
  // An id that ended may be used again by whoever asks for it without the front.
  ended_.erase(std::remove(ended_.begin(), ended_.end(), request_id), ended_.end());
  Record& record = records_[request_id];
  record = Record();
  record.explanation.request_id = request_id;
  record.explanation.trace_id = trace_id;
  record.explanation.caller = caller;
  record.queued_at = clock_.Now();
}

void RequestLog::OnProgress(const GenerateEvent& event) {
  MutexLock lock(mutex_);
  const auto found = records_.find(event.request_id);
  if (found == records_.end()) return;
  Explanation& explanation = found->second.explanation;
  explanation.state = RequestState::kRunning;
  GenerateEvent kept;
  kept.request_id = event.request_id;
  kept.prompt_tokens = event.prompt_tokens;
  kept.prefilled_tokens = event.prefilled_tokens;
  kept.cached_tokens = event.cached_tokens;
  kept.completion_tokens = event.completion_tokens;
  kept.sampling = event.sampling;
  kept.max_tokens = event.max_tokens;
  kept.finished = event.finished;
  kept.finish_reason = event.finish_reason;
  kept.matched_stop = event.matched_stop;
  kept.logits_hash = event.logits_hash;
  kept.tokens_hash = event.tokens_hash;
  kept.exactness = event.exactness;
  kept.timing = event.timing;
  explanation.last = std::move(kept);
}

void RequestLog::OnEnded(const std::string& request_id, const absl::Status& status) {
  const std::optional<Explanation> ended = NoteEnd(request_id, status);
  if (ended.has_value() && on_ended_) on_ended_(*ended);
}

// How it went; nothing for a stranger and for one that had ended.
std::optional<Explanation> RequestLog::NoteEnd(const std::string& request_id,
                                               const absl::Status& status) {
  MutexLock lock(mutex_);
  const auto found = records_.find(request_id);
  if (found == records_.end() || found->second.ended) return std::nullopt;
  Record& record = found->second;
  record.ended = true;
  record.explanation.state = status.ok() ? RequestState::kFinished : RequestState::kFailed;
  record.explanation.failure = status;
  Explanation ended = record.explanation;
  ended.age_seconds = absl::ToDoubleSeconds(clock_.Now() - record.queued_at);
  ended_.push_back(request_id);
  if (ended_.size() > max_ended_) {
    records_.erase(ended_.front());
    ended_.pop_front();
  }
  return ended;
}

absl::StatusOr<Explanation> RequestLog::Explain(const std::string& request_id,
                                                const std::optional<std::string>& asker) const {
  MutexLock lock(mutex_);
  const auto found = records_.find(request_id);
  if (found == records_.end() ||
      (asker.has_value() && found->second.explanation.caller != *asker)) {
    return WithHint(absl::NotFoundError(absl::StrCat("request '", request_id.substr(0, 128),
                                                     "' is not among those that run and the last ",
                                                     max_ended_, " that ended")),
                    "the id is in every chunk of the answer, and in the --json object");
  }
  Explanation explanation = found->second.explanation;
  explanation.age_seconds = absl::ToDoubleSeconds(clock_.Now() - found->second.queued_at);
  return explanation;
}

bool RequestLog::HasEnded(const std::string& request_id) const {
  MutexLock lock(mutex_);
  const auto found = records_.find(request_id);
  return found != records_.end() && found->second.ended;
}

void WriteLogLine(const Explanation& ended, Logger& logger) {
  const GenerateEvent& last = ended.last;
  std::vector<LogField> fields = {{"request_id", ended.request_id}};
  if (!ended.trace_id.empty()) fields.emplace_back("trace_id", ended.trace_id);
  if (!ended.caller.empty()) fields.emplace_back("caller", ended.caller);
  LogLevel level = LogLevel::kInfo;
  absl::string_view sentence = "a request was answered";
  const bool cancelled =
      absl::IsCancelled(ended.failure) || last.finish_reason == FinishReason::kAbort;
  if (cancelled) {
    sentence = "a request was cancelled";
  } else if (!ended.failure.ok()) {
    level = LogLevel::kWarning;
    sentence = "a request failed";
    fields.emplace_back("status", ended.failure);
  } else {
    fields.emplace_back("prompt_tokens", last.prompt_tokens);
  }
  fields.emplace_back("completion_tokens", last.completion_tokens);
  if (!cancelled && ended.failure.ok()) fields.emplace_back("exact", last.exactness.exact());
  fields.emplace_back("seconds", ended.age_seconds);
  logger.LogOf({ended.caller, ""}, level, sentence, std::move(fields));
}

}  // namespace moebius
