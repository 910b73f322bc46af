// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "moebius/api/generate.h"
#include "moebius/base/hash.h"
#include "moebius/base/strong_id.h"
#include "moebius/model/tokenizer.h"
#include "moebius/routing/capacity.h"
#include "router_service/admission.h"
#include "router_service/exactness.h"
#include "router_service/generate_stream.h"
#include "router_service/ports.h"
#include "router_service/request_log.h"
#include "router_service/request_trace.h"
#include "router_service/sampler.h"
#include "router_service/step_schedule.h"
#include "router_service/stop_matcher.h"

namespace moebius {

/// One request on its way through a lead: its tokens, how far their KV is written, what its answer
/// is and what of it may be told. It decides nothing about others.
///
/// Not thread-safe: it belongs to the stepping thread. Times are the lead's monotonic clock.
class Session {
 public:
  /// Borrows `tokenizer` (null where the request has no stop strings). `now` is the submission.
  Session(SessionId id, AdmittedRequest admitted, const GenerateRequest& request,
          const Tokenizer* tokenizer, std::shared_ptr<GenerateStream> stream, absl::Duration now);

  /// Where progress and end are noted; null for nowhere. Borrowed.
  void SetLog(RequestLog* log) { log_ = log; }
  /// Where its spans go; null: nowhere.
  void SetTrace(std::unique_ptr<RequestTrace> trace) { trace_ = std::move(trace); }
  RequestTrace* trace() const { return trace_.get(); }
  /// What may have touched its rows.
  void SetCapacity(const CapacityPolicy& capacity) { capacity_ = capacity; }
  /// As DescribeExactness says it.
  void SetPerDegreeSum(const PerDegreeSum& sum) { per_degree_ = sum; }

  SessionId id() const { return id_; }
  const std::string& request_id() const { return admitted_.request_id; }
  int32_t priority() const { return admitted_.priority; }
  uint64_t arrival() const { return id_.value(); }
  int64_t kv_blocks() const { return admitted_.kv_blocks; }
  int64_t max_tokens() const { return admitted_.max_tokens; }
  int64_t num_generated() const { return static_cast<int64_t>(tokens_.size()) - prompt_length_; }
  int64_t prompt_length() const { return prompt_length_; }
  absl::Duration submitted_at() const { return submitted_at_; }
  /// The last token's time; before the first, the submission's.
  absl::Duration last_news_at() const {
    return num_generated() == 0 ? submitted_at_ : last_token_at_;
  }
  absl::Duration deadline() const { return deadline_; }
  /// The reader asked to stop, or is gone.
  /// Its last token is there; Deliver tells the end.
  bool is_complete() const { return finish_reason_ != FinishReason::kNone; }
  bool cancelled() const { return stream_->cancelled() || stream_.use_count() == 1; }
  bool finished() const { return finished_; }
  /// Of what was computed so far.
  Exactness exactness() const { return DescribeExactness(effects_, capacity_, per_degree_); }

  /// How long the session has waited for its reader; zero while there is room.
  absl::Duration UpdatePause(absl::Duration now);
  SessionDemand Demand() const;
  /// Adds the next `num_rows` pending tokens to a step; asks for logits where they are the last.
  void AppendRows(int64_t num_rows, StepRequest* step) const;

  void OnAdmitted(absl::Duration now);
  /// The rows' KV is committed.
  void OnRowsDone(int64_t num_rows, const RowsOutcome& outcome, const StepFigures& figures);
  /// Chooses the next token from the logits of the last one. On an executor thread. A failure ends
  /// this request.
  absl::Status AcceptLogits(absl::Span<const float> logits, Sampler& sampler, absl::Duration now);
  /// True once, where the request asked for its KV to be dropped at this point: the session then
  /// runs all its tokens again.
  bool TakeRecompute();
  /// The KV is gone: the session runs all its tokens again, each in its own role.
  int64_t LoseKv() { return std::exchange(num_run_, 0); }
  /// Tells the reader what is new, and ends the stream after the last token.
  void Deliver(absl::Duration now);

  void FinishAborted(absl::Duration now);
  void FinishFailed(const absl::Status& status);

 private:
  // A generated token that is not told yet, and the hashes of the answer up to it.
  struct HeldToken {
    int64_t token_id = 0;
    uint64_t logits_digest = 0;
    uint64_t tokens_digest = 0;
    PositionLogprobs logprobs;
  };

  int64_t num_pending() const { return static_cast<int64_t>(tokens_.size()) - num_run_; }
  GenerateEvent MakeEvent();
  void EndTrace(const absl::Status& status);
  void Finish(absl::Duration now);

  const SessionId id_;
  const AdmittedRequest admitted_;
  const int64_t prompt_length_;
  const int64_t recompute_after_;  // generated tokens; -1: never
  const Tokenizer* const tokenizer_;
  const absl::Duration submitted_at_;
  const absl::Duration deadline_;
  const std::shared_ptr<GenerateStream> stream_;
  RequestLog* log_ = nullptr;
  std::unique_ptr<RequestTrace> trace_;
  CapacityPolicy capacity_;
  PerDegreeSum per_degree_;

  std::vector<int32_t> tokens_;  // prompt, then generated
  int64_t num_run_ = 0;          // tokens whose KV is committed
  bool recomputed_ = false;
  TokenCounts counts_;
  StopMatcher stop_matcher_;
  std::vector<HeldToken> held_;
  int64_t num_told_ = 0;

  StreamingHash64 logits_hash_;
  StreamingHash64 tokens_hash_;
  uint64_t told_logits_digest_;  // of the tokens that the reader was told
  uint64_t told_tokens_digest_;

  FinishReason finish_reason_ = FinishReason::kNone;
  bool finished_ = false;
  absl::Duration paused_since_ = absl::InfiniteDuration();
  absl::Duration admitted_at_;
  absl::Duration first_token_at_ = absl::InfiniteDuration();
  absl::Duration last_token_at_;
  GenerateTiming timing_;
  RowEffects effects_;  // of all its rows so far
};

}  // namespace moebius
