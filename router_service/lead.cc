// SPDX-License-Identifier: Apache-2.0
#include "router_service/lead.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/mutex.h"
#include "moebius/base/random.h"
#include "moebius/base/status.h"
#include "router_service/admission.h"
#include "router_service/asked_requests.h"
#include "router_service/exactness.h"
#include "router_service/outage.h"
#include "router_service/session.h"
#include "router_service/step_errands.h"
#include "router_service/step_runner.h"
#include "router_service/wake_signal.h"

namespace moebius {
namespace {

// Seeds that are drawn stay below 2^53, so that every JSON reader keeps them whole.
uint64_t DrawSeed() { return SeedFromSystem() >> 11; }

// How long a step that waits for services holds the stepping thread: cancelled requests end within.
constexpr absl::Duration kOutageWait = absl::Milliseconds(20);

// Running requests in the order in which the queue lets them in.
bool EntersBefore(const Session& a, const Session& b) {
  if (a.priority() != b.priority()) return a.priority() > b.priority();
  return a.arrival() < b.arrival();
}

}  // namespace

class Lead::Impl {
 public:
  Impl(const LeadOptions& options, RowOwnerPort* owner, Executor* executor,
       const Tokenizer* tokenizer, const Clock& clock)
      : options_(options),
        owner_(owner),
        executor_(executor),
        tokenizer_(tokenizer),
        clock_(clock),
        pool_(owner->kv_pool()),
        wake_(std::make_shared<WakeSignal>()),
        runner_({options.max_step_attempts, options.slow_step}, owner, &meter_, &by_id_, clock),
        step_(options.first_step),
        outage_(options.max_outage) {}

  absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(const GenerateRequest& request) {
    bool is_followed = false;
    absl::StatusOr<std::shared_ptr<GenerateStream>> stream = TrySubmit(request, &is_followed);
    if (!is_followed) meter_.OnSubmitted(stream.status());
    return stream;
  }

  void NoteRefused(const absl::Status& reason) { meter_.OnSubmitted(reason); }

  bool RunOneStep() {
    const bool ran_errand = errands_.RunOne(&step_);
    AcceptSubmissions();
    EndCancelled();
    AdmitQueued();
    const absl::Span<const ScheduledRows> schedule = Schedule();
    if (schedule.empty()) return ran_errand;
    if (outage_.is_open() && owner_->WaitUntilUsable(absl::ZeroDuration())) outage_.End();
    RunSchedule(schedule, Isolation::kTogether);
    EndCancelled();
    PublishUsage();
    return true;
  }

  absl::Status RunBetweenSteps(StepErrands::Body body, absl::Duration timeout) {
    return errands_.Run(body, timeout, [this] { wake_->Raise(); });
  }

  void SetLog(RequestLog* log) { log_ = log; }
  void SetOnSlowStep(SlowStepNotice on_slow) { runner_.SetOnSlow(std::move(on_slow)); }
  void SetTracing(const TraceRule& rule) { tracing_ = rule; }

  void WaitForWork(absl::Duration timeout) { wake_->Wait(timeout); }

  // Only after Shutdown, when nobody steps any more.
  void EndEverything() {
    AcceptSubmissions();
    EndCancelled();
  }

  void Shutdown() {
    {
      MutexLock lock(mutex_);
      shut_down_ = true;
    }
    errands_.Shutdown();
    wake_->Raise();
  }

  bool is_shut_down() const {
    MutexLock lock(mutex_);
    return shut_down_;
  }

  LeadUsage usage() const {
    MutexLock lock(mutex_);
    LeadUsage usage = usage_;
    usage.kv_capacity_tokens = pool_.num_blocks * pool_.block_tokens;
    usage.queued_requests += static_cast<int64_t>(submitted_.size());
    return usage;
  }

  const LeadMeter& meter() const { return meter_; }
  void CountForward(const StepFigures& figures, const Exactness& exactness) {
    meter_.OnForward(figures, exactness);
  }

 private:
  using SessionPointer = std::unique_ptr<Session>;
  enum class Isolation { kTogether, kAlone };

  // `is_followed`: the stream is of a request that runs already.
  absl::StatusOr<std::shared_ptr<GenerateStream>> TrySubmit(const GenerateRequest& request,
                                                            bool* is_followed) {
    if (!request.stop.empty() && tokenizer_ == nullptr) {
      return WithHint(
          absl::UnimplementedError("stop strings need a tokenizer that this build reads"),
          "use stop_token_ids");
    }
    std::unique_ptr<RequestTrace> trace =
        RequestTrace::Begin(tracing_, request.traceparent, "generate");
    const uint64_t seed = DrawSeed();
    absl::StatusOr<AdmittedRequest> admitted =
        AdmitRequest(request, options_, pool_, absl::StrCat("request-", absl::Hex(seed)), seed);
    if (!admitted.ok()) return admitted.status();
    auto stream = std::make_shared<GenerateStream>(
        static_cast<size_t>(options_.max_queued_events), [wake = wake_] { wake->Raise(); },
        request.request_id.empty() ? 0 : static_cast<size_t>(options_.max_replayed_events));
    {
      MutexLock lock(mutex_);
      if (shut_down_) return absl::UnavailableError("shutting down: no new requests are taken");
      MOEBIUS_ASSIGN_OR_RETURN(std::shared_ptr<GenerateStream> follower,
                               asked_.Follow(admitted->request_id, request));
      *is_followed = follower != nullptr;
      if (*is_followed) return follower;
      const int64_t waiting = usage_.queued_requests + static_cast<int64_t>(submitted_.size());
      if (waiting >= options_.max_queued_requests) {
        return WithHint(
            absl::ResourceExhaustedError(absl::StrCat(
                waiting, " requests are queued, the limit is ", options_.max_queued_requests)),
            "try again later");
      }
      asked_.Add(admitted->request_id, request, stream);
      const uint64_t arrival = next_session_++;
      submitted_.push_back(std::make_unique<Session>(SessionId(arrival), *std::move(admitted),
                                                     request, tokenizer_, stream, clock_.Now()));
      submitted_.back()->SetLog(log_);
      submitted_.back()->SetCapacity(options_.capacity);
      submitted_.back()->SetPerDegreeSum(options_.per_degree);
      if (log_ != nullptr) {
        log_->OnQueued(submitted_.back()->request_id(), TraceIdOf(trace.get(), request.traceparent),
                       request.caller);
      }
      submitted_.back()->SetTrace(std::move(trace));
    }
    wake_->Raise();
    return stream;
  }

  void AcceptSubmissions() {
    MutexLock lock(mutex_);
    for (SessionPointer& session : submitted_) queued_.push_back(std::move(session));
    submitted_.clear();
    std::sort(queued_.begin(), queued_.end(), [](const SessionPointer& a, const SessionPointer& b) {
      return EntersBefore(*a, *b);
    });
    UpdateUsage();
  }

  // Ends, in both tables, what its reader, its deadline or a shutdown ends.
  void EndCancelled() {
    const bool shut_down = is_shut_down();
    const absl::Duration now = clock_.Now();
    const auto end_where_due = [&](SessionPointer& session) {
      if (shut_down) {
        Fail(*session, absl::UnavailableError("shutting down"));
      } else if (session->cancelled()) {
        session->FinishAborted(now);
        meter_.OnCancelled();
      } else if (now >= session->deadline()) {
        Fail(*session, absl::DeadlineExceededError(absl::StrCat("the deadline passed after ",
                                                                session->num_generated(), " of ",
                                                                session->max_tokens(), " tokens")));
      } else if (session->UpdatePause(now) > options_.max_pause) {
        Fail(*session,
             absl::ResourceExhaustedError(absl::StrCat("the reader did not take its events for ",
                                                       absl::FormatDuration(options_.max_pause))));
      }
    };
    for (SessionPointer& session : queued_) end_where_due(session);
    for (SessionPointer& session : running_) end_where_due(session);
    RemoveEnded();
  }

  // In order, and none overtakes one that waits for KV: so nobody waits for ever.
  void AdmitQueued() {
    size_t admitted = 0;
    for (; admitted < queued_.size(); ++admitted) {
      Session& session = *queued_[admitted];
      if (static_cast<int64_t>(running_.size()) >= options_.max_running_sessions) break;
      if (reserved_blocks_ + session.kv_blocks() > pool_.num_blocks) break;
      reserved_blocks_ += session.kv_blocks();
      const absl::Duration now = clock_.Now();
      session.OnAdmitted(now);
      meter_.OnAdmitted(session.prompt_length(), now - session.submitted_at());
      by_id_[session.id().value()] = &session;
      running_.push_back(std::move(queued_[admitted]));
    }
    queued_.erase(queued_.begin(), queued_.begin() + static_cast<std::ptrdiff_t>(admitted));
    PublishUsage();
  }

  absl::Span<const ScheduledRows> Schedule() {
    demands_.clear();
    for (const SessionPointer& session : running_) demands_.push_back(session->Demand());
    return scheduler_.Build(demands_, options_.schedule, step_);
  }

  // Runs one step of these rows and hands each session what it gets from it. A step that fails for
  // good is run again session by session: whoever causes the failure fails alone.
  void RunSchedule(absl::Span<const ScheduledRows> schedule, Isolation isolation) {
    const absl::Status status = runner_.Run(step_++, schedule);
    if (status.ok()) {
      DeliverStep(schedule);
    } else if ((runner_.misses_service() || runner_.lost_kv()) && !is_shut_down() &&
               outage_.OnMissed(clock_.Now())) {
      owner_->WaitUntilUsable(kOutageWait);  // then what is pending is scheduled again
    } else if (isolation == Isolation::kAlone || schedule.size() == 1) {
      Fail(*by_id_.at(schedule[0].session.value()), status);
    } else {
      for (const ScheduledRows& rows : schedule) {
        RunSchedule(absl::MakeConstSpan(&rows, 1), Isolation::kAlone);
      }
    }
    RemoveEnded();
  }

  // Sampling is output arithmetic: it runs on the executor like every other.
  void DeliverStep(absl::Span<const ScheduledRows> schedule) {
    const StepRequest& request = runner_.request();
    executor_->Run([&] {
      size_t logit_index = 0;
      for (size_t index = 0; index < schedule.size(); ++index) {
        Session& session = *by_id_.at(schedule[index].session.value());
        const SessionRows& rows = request.plan.sessions[index];
        const bool has_logits = logit_index < request.logit_rows.size() &&
                                request.logit_rows[logit_index] < rows.row_end();
        absl::Span<const float> logits;
        if (has_logits)
          logits = runner_.result().logits.rows().span(static_cast<int64_t>(logit_index++));
        DeliverRows(session, rows, logits);
      }
    });
  }

  void DeliverRows(Session& session, const SessionRows& rows, absl::Span<const float> logits) {
    const RowsOutcome outcome = OutcomeOf(runner_.result(), rows);
    if (!outcome.failure.ok()) return Fail(session, outcome.failure);
    const absl::Duration now = clock_.Now();
    session.OnRowsDone(rows.num_rows, outcome, runner_.result().figures);
    if (!logits.empty()) {
      const bool is_first = session.num_generated() == 0;
      const absl::Duration waited = now - session.last_news_at();
      const absl::Status sampled = session.AcceptLogits(logits, sampler_, now);
      if (!sampled.ok()) return Fail(session, sampled);
      is_first ? meter_.OnFirstToken(waited) : meter_.OnNextToken(waited);
    }
    if (session.TakeRecompute()) owner_->EndSession(session.id());
    // First: who has the last event may ask what was counted.
    if (session.is_complete()) meter_.OnFinished(session.exactness());
    session.Deliver(now);
  }

  void Fail(Session& session, const absl::Status& status) {
    if (session.finished()) return;
    session.FinishFailed(status);
    meter_.OnFailed(status);
  }

  void RemoveEnded() {
    const auto ended = [this](const SessionPointer& session) {
      if (!session->finished()) return false;
      if (by_id_.erase(session->id().value()) != 0) {
        reserved_blocks_ -= session->kv_blocks();
        owner_->EndSession(session->id());
      }
      MutexLock lock(mutex_);
      asked_.Remove(session->request_id());
      return true;
    };
    queued_.erase(std::remove_if(queued_.begin(), queued_.end(), ended), queued_.end());
    running_.erase(std::remove_if(running_.begin(), running_.end(), ended), running_.end());
    PublishUsage();
  }

  void PublishUsage() {
    MutexLock lock(mutex_);
    UpdateUsage();
  }

  void UpdateUsage() MOEBIUS_REQUIRES(mutex_) {
    usage_.queued_requests = static_cast<int64_t>(queued_.size());
    usage_.running_sessions = static_cast<int64_t>(running_.size());
    usage_.reserved_kv_tokens = reserved_blocks_ * pool_.block_tokens;
  }

  const LeadOptions options_;
  RowOwnerPort* const owner_;
  Executor* const executor_;
  const Tokenizer* const tokenizer_;
  const Clock& clock_;
  const KvPool pool_;
  const std::shared_ptr<WakeSignal> wake_;  // outlives the lead: a reader may raise it later
  LeadMeter meter_;
  RequestLog* log_ = nullptr;
  TraceRule tracing_;
  StepErrands errands_;

  // The stepping thread's own.
  std::vector<SessionPointer> queued_;
  std::vector<SessionPointer> running_;
  SessionsById by_id_;  // running ones
  std::vector<SessionDemand> demands_;
  StepScheduler scheduler_;
  StepRunner runner_;
  Sampler sampler_;
  uint64_t step_;
  Outage outage_;
  int64_t reserved_blocks_ = 0;

  mutable Mutex mutex_;
  std::vector<SessionPointer> submitted_ MOEBIUS_GUARDED_BY(mutex_);
  AskedRequests asked_ MOEBIUS_GUARDED_BY(mutex_);  // queued and running
  uint64_t next_session_ MOEBIUS_GUARDED_BY(mutex_) = 1;
  bool shut_down_ MOEBIUS_GUARDED_BY(mutex_) = false;
  LeadUsage usage_ MOEBIUS_GUARDED_BY(mutex_);
};

Lead::Lead(const LeadOptions& options, RowOwnerPort* owner, Executor* executor,
           const Tokenizer* tokenizer, const Clock& clock)
    : impl_(std::make_unique<Impl>(options, owner, executor, tokenizer, clock)) {}

Lead::~Lead() {
  impl_->Shutdown();
  impl_->EndEverything();
}

absl::StatusOr<std::shared_ptr<GenerateStream>> Lead::Submit(const GenerateRequest& request) {
  return impl_->Submit(request);
}
void Lead::NoteRefused(const absl::Status& reason) { impl_->NoteRefused(reason); }
bool Lead::RunOneStep() { return impl_->RunOneStep(); }
absl::Status Lead::RunBetweenSteps(absl::FunctionRef<void(uint64_t*)> body,
                                   absl::Duration timeout) {
  return impl_->RunBetweenSteps(body, timeout);
}
void Lead::SetLog(RequestLog* log) { impl_->SetLog(log); }
void Lead::SetOnSlowStep(SlowStepNotice on_slow) { impl_->SetOnSlowStep(std::move(on_slow)); }
void Lead::SetTracing(const TraceRule& rule) { impl_->SetTracing(rule); }
void Lead::WaitForWork(absl::Duration timeout) { impl_->WaitForWork(timeout); }
void Lead::Shutdown() { impl_->Shutdown(); }
bool Lead::is_shut_down() const { return impl_->is_shut_down(); }
LeadUsage Lead::usage() const { return impl_->usage(); }
LeadCounters Lead::counters() const { return meter().counters(); }
const LeadMeter& Lead::meter() const { return impl_->meter(); }
void Lead::CountForward(const StepFigures& figures, const Exactness& exactness) {
  impl_->CountForward(figures, exactness);
}

}  // namespace moebius
