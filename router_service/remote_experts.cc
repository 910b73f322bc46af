// SPDX-License-Identifier: Apache-2.0
#include "router_service/remote_experts.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/mutex.h"
#include "moebius/routing/dispatch_plan.h"
#include "moebius/transport/delivery_cond_var.h"
#include "moebius/wire/dispatch_codec.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"
#include "router_service/resend_budget.h"

namespace moebius {

class RemoteExperts::Impl {
 public:
  Impl(const RemoteExpertsOptions& options, const Placement& placement, Transport* transport,
       PeerDirectory* directory, const Clock& clock)
      : options_(options),
        placement_(placement),
        transport_(*transport),
        directory_(*directory),
        clock_(clock),
        avoided_(static_cast<size_t>(placement.num_services())),
        usable_(avoided_.size()),
        waits_(avoided_.size()),
        questions_(avoided_.size()),
        traffic_(avoided_.size()) {
    arrived_.reserve(questions_.size());
    listener_ = directory_.AddListener([this] { OnDirectoryChange(); });
  }

  ~Impl() { directory_.RemoveListener(listener_); }

  void BeginStep(const StepPlan& step) {
    term_ = step.term;
    key_ = MessageKey{};
    key_.step = step.step;
    key_.attempt = static_cast<uint32_t>(step.attempt);
    lane_ = step.num_rows <= options_.decode_rows ? Lane::kDecode : Lane::kBulk;
    std::fill(avoided_.begin(), avoided_.end(), 0);
    std::fill(waits_.begin(), waits_.end(), absl::ZeroDuration());
  }

  std::optional<ServiceWait> slowest_service() const {
    const auto longest = std::max_element(waits_.begin(), waits_.end());
    if (longest == waits_.end() || *longest == absl::ZeroDuration()) return std::nullopt;
    return ServiceWait{ServiceId(static_cast<int32_t>(longest - waits_.begin())), *longest};
  }

  absl::Span<const uint8_t> usable_services() {
    for (size_t service = 0; service < usable_.size(); ++service) {
      usable_[service] = IsUsable(service) ? 1 : 0;
    }
    return usable_;
  }

  absl::Status Forward(LayerId layer, const DispatchPlan& plan, ForwardCall call, Bf16Rows rows,
                       absl::Span<const MutableBf16Rows> replies, std::vector<ServiceId>* failed) {
    failed->clear();
    failed_ = failed;
    plan_ = &plan;
    fatal_ = absl::OkStatus();
    key_.layer = static_cast<uint32_t>(layer.value());
    key_.round = static_cast<uint32_t>(call.number);
    is_resend_ = call.is_resend;
    if (TakeShutdown()) return ShutdownError();
    for (size_t service = 0; service < questions_.size() && fatal_.ok(); ++service) {
      if (plan.services()[service].num_rows() > 0) Ask(service, rows);
    }
    if (!fatal_.ok()) CancelAll();
    while (num_open_ > 0) {
      const Event event = WaitForEvent();
      for (const size_t service : taken_) Resolve(service, replies[service]);
      if (event.shut_down && fatal_.ok()) fatal_ = ShutdownError();
      if (!fatal_.ok()) {
        CancelAll();
      } else if (event.directory_changed) {
        GiveUpSuspects();
      }
    }
    return fatal_;
  }

  bool WaitUntilUsable(absl::Duration timeout) {
    const absl::Duration end = Clock::Monotonic().Now() + timeout;
    while (true) {
      const uint64_t seen = NumChanges();
      if (EveryExpertIsUsable()) return true;
      MutexLock lock(mutex_);
      while (num_changes_ == seen) {
        const absl::Duration left = end - Clock::Monotonic().Now();
        if (shut_down_ || left <= absl::ZeroDuration()) return false;
        changed_.WaitWithTimeout(mutex_, left);
      }
    }
  }

  void Shutdown() {
    MutexLock lock(mutex_);
    shut_down_ = true;
    changed_.SignalAll();
  }

  PortTraffic traffic() const {
    PortTraffic all;
    MutexLock lock(mutex_);
    for (const ExpertTraffic& service : traffic_) {
      all.Add({service.dispatches, static_cast<int64_t>(service.sent_bytes),
               static_cast<int64_t>(service.received_bytes)});
    }
    return all;
  }

  std::vector<ExpertTraffic> figures() const {
    MutexLock lock(mutex_);
    return traffic_;
  }

  void WriteMetrics(MetricWriter& writer) const {
    constexpr absl::string_view kReasons[kNumFailoverReasons] = {"gone",    "suspect", "silent",
                                                                 "refused", "damaged", "unsent"};
    MutexLock lock(mutex_);
    for (size_t reason = 0; reason < kNumFailoverReasons; ++reason) {
      writer.WriteCounter(Metric::kFailovers, static_cast<double>(failovers_[reason]),
                          {kReasons[reason]});
    }
  }

 private:
  // One dispatch under way. `delivery` and `arrived_at` are written by the transport's threads.
  struct Question {
    ReservationId reservation;
    bool is_open = false;  // its delivery will come, and has not been taken
    absl::Duration asked_at;
    absl::Duration arrived_at;
    std::optional<Delivery> delivery;
  };
  struct Event {
    bool directory_changed = false;
    bool shut_down = false;
  };

  static absl::Status ShutdownError() {
    return absl::UnavailableError("this router is shutting down");
  }

  bool IsUsable(size_t service) const {
    return avoided_[service] == 0 &&
           directory_.IsExpertUsable(ServiceId(static_cast<int32_t>(service)));
  }

  // Whether other services have everything that this one is asked for.
  bool OthersCanStandIn(size_t service) const {
    for (const ExpertSegment& segment : plan_->services()[service].experts) {
      bool found = false;
      for (const ServiceId other : placement_.Services(plan_->rule().layer, segment.id)) {
        const auto index = static_cast<size_t>(other.value());
        found = found || (index != service && IsUsable(index));
      }
      if (!found) return false;
    }
    return true;
  }

  // Reserves the reply and sends the dispatch, or notes the service as failed.
  void Ask(size_t service, Bf16Rows rows) {
    const ServiceDispatch& dispatch = plan_->services()[service];
    const std::optional<PeerId> peer = directory_.ExpertPeer(dispatch.service);
    if (!peer.has_value() || (!IsUsable(service) && OthersCanStandIn(service))) {
      return NoteFailed(service, FailoverReason::kGone, Avoid::kNo);
    }
    Question& question = questions_[service];
    const absl::StatusOr<ReservationId> reservation = Reserve(service, *peer);
    if (!reservation.ok()) return NoteUnsent(service, *peer, reservation.status());
    question.reservation = *reservation;
    question.is_open = true;
    ++num_open_;
    Message message = BuildDispatch(KeyOf(kDispatchKind), dispatch, rows);
    message.term = term_;
    message.budget_ms = static_cast<uint32_t>(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(options_.reply_timeout), 1, UINT32_MAX));
    const uint64_t bytes = MessageBytes(message);
    SendOptions send;
    send.timeout = options_.reply_timeout;
    const auto sent = transport_.Send(*peer, lane_, std::move(message), std::move(send));
    if (!sent.ok()) {
      if (Cancel(service)) NoteUnsent(service, *peer, sent.status());
      return;  // else its end is on the way
    }
    budget_.OnSent(question.asked_at, dispatch.num_rows());
    CountSent(service, bytes);
  }

  absl::StatusOr<ReservationId> Reserve(size_t service, PeerId peer) {
    Question& question = questions_[service];
    question.asked_at = clock_.Now();
    ReservationSpec spec;
    spec.source = peer;
    spec.key = KeyOf(kDispatchReplyKind);
    spec.max_message_bytes =
        MaxReplyBytes(plan_->services()[service].num_reply_rows, options_.hidden_size);
    spec.deadline = question.asked_at + options_.reply_timeout;
    // Small enough to be stored in place. `this` outlives it: no question stays open.
    spec.on_delivery = [this, service](Delivery delivery) {
      OnDelivery(service, std::move(delivery));
    };
    return transport_.Reserve(std::move(spec));
  }

  MessageKey KeyOf(FrameKind kind) const {
    MessageKey key = key_;
    key.kind = kind;
    return key;
  }

  // On a thread of the transport.
  void OnDelivery(size_t service, Delivery delivery) {
    const absl::Duration now = clock_.Now();
    MutexLock lock(mutex_);
    questions_[service].delivery = std::move(delivery);
    questions_[service].arrived_at = now;
    arrived_.push_back(service);
    if (arrived_.size() >= wake_at_) changed_.SignalAll();
  }

  void OnDirectoryChange() {
    MutexLock lock(mutex_);
    ++num_changes_;
    changed_.SignalAll();
  }

  uint64_t NumChanges() const {
    MutexLock lock(mutex_);
    return num_changes_;
  }

  bool TakeShutdown() const {
    MutexLock lock(mutex_);
    return shut_down_;
  }

  // Waits for deliveries, which go to taken_, for a change of the directory or the end. Replies of
  // few rows are taken together: copying them costs less than waking up for each.
  Event WaitForEvent() {
    MutexLock lock(mutex_);
    wake_at_ = lane_ == Lane::kDecode ? static_cast<size_t>(num_open_) : 1;
    while (arrived_.size() < wake_at_ && num_changes_ == changes_taken_ &&
           (!shut_down_ || !fatal_.ok())) {
      changed_.Wait(mutex_);
    }
    taken_.clear();
    taken_.swap(arrived_);
    const bool changed = std::exchange(changes_taken_, num_changes_) != num_changes_;
    return Event{changed, shut_down_};
  }

  // Takes what came for a question: rows, or a failure of that service alone, or one of all.
  void Resolve(size_t service, MutableBf16Rows replies) {
    Question& question = questions_[service];
    const Delivery delivery = *std::exchange(question.delivery, std::nullopt);
    question.is_open = false;
    --num_open_;
    waits_[service] += question.arrived_at - question.asked_at;
    if (!delivery.message.ok()) {
      if (absl::IsUnavailable(delivery.message.status())) directory_.NoteGone(delivery.source);
      if (absl::IsDeadlineExceeded(delivery.message.status())) {
        return NoteFailed(service, FailoverReason::kSilent, Avoid::kYes);
      }
      const bool is_gone = absl::IsUnavailable(delivery.message.status());
      return NoteFailed(service, is_gone ? FailoverReason::kGone : FailoverReason::kDamaged,
                        Avoid::kNo);
    }
    const Message& message = *delivery.message;
    absl::Status failure;
    if (IsFailedReply(message, &failure)) {
      if (absl::IsInvalidArgument(failure)) NoteFatal(service, failure);
      return NoteFailed(service, FailoverReason::kRefused, Avoid::kYes);
    }
    const absl::StatusOr<ReceivedRows> received =
        ParseReply(message, replies.num_rows, options_.hidden_size);
    if (!received.ok()) return NoteFailed(service, FailoverReason::kDamaged, Avoid::kYes);
    for (int64_t row = 0; row < replies.num_rows; ++row) {
      std::copy_n(received->rows.row(row), replies.width, replies.row(row));
    }
    MutexLock lock(mutex_);
    ExpertTraffic& traffic = traffic_[service];
    traffic.reply_rows += replies.num_rows;
    traffic.received_bytes += MessageBytes(message);
    traffic.wait_seconds += absl::ToDoubleSeconds(question.arrived_at - question.asked_at);
  }

  // Sends nobody's rows twice unless somebody else has the experts and the budget allows it.
  void GiveUpSuspects() {
    for (size_t service = 0; service < questions_.size(); ++service) {
      if (!questions_[service].is_open || IsUsable(service) || !OthersCanStandIn(service)) continue;
      const ServiceId id(static_cast<int32_t>(service));
      if (!directory_.ExpertPeer(id).has_value()) continue;  // dead: its end is on the way
      const int64_t rows = plan_->services()[service].num_rows();
      if (!budget_.TryTake(clock_.Now(), rows)) continue;
      if (!Cancel(service)) continue;  // its answer, or its end, is on the way
      waits_[service] += clock_.Now() - questions_[service].asked_at;
      NoteFailed(service, FailoverReason::kSuspect, Avoid::kNo);
      MutexLock lock(mutex_);
      ++traffic_[service].given_up;
    }
  }

  void CancelAll() {
    for (size_t service = 0; service < questions_.size(); ++service) {
      if (questions_[service].is_open) Cancel(service);
    }
  }

  // True when nothing will come for the question any more.
  bool Cancel(size_t service) {
    if (!transport_.CancelReservation(questions_[service].reservation)) return false;
    questions_[service].is_open = false;
    --num_open_;
    return true;
  }

  enum class Avoid { kNo, kYes };  // for the rest of the step

  void NoteFailed(size_t service, FailoverReason reason, Avoid avoid) {
    if (avoid == Avoid::kYes) avoided_[service] = 1;
    failed_->push_back(ServiceId(static_cast<int32_t>(service)));
    MutexLock lock(mutex_);
    ++traffic_[service].failures;
    if (fatal_.ok()) ++failovers_[static_cast<size_t>(reason)];
  }

  // A dispatch that could not leave: that the peer is gone or slow is its own matter, that the
  // message breaks a limit is everybody's.
  void NoteUnsent(size_t service, PeerId peer, const absl::Status& status) {
    if (absl::IsUnavailable(status)) directory_.NoteGone(peer);
    if (!IsRetryable(status)) NoteFatal(service, status);
    const bool is_gone = absl::IsUnavailable(status);
    NoteFailed(service, is_gone ? FailoverReason::kGone : FailoverReason::kUnsent, Avoid::kYes);
  }

  void NoteFatal(size_t service, const absl::Status& status) {
    if (!fatal_.ok()) return;
    fatal_ = WithContext(status, absl::StrCat("layer ", key_.layer, ", expert service ", service));
  }

  void CountSent(size_t service, uint64_t bytes) {
    const int64_t rows = plan_->services()[service].num_rows();
    MutexLock lock(mutex_);
    ExpertTraffic& traffic = traffic_[service];
    ++traffic.dispatches;
    traffic.rows += rows;
    traffic.sent_bytes += bytes;
    if (is_resend_) traffic.resent_rows += rows;
  }

  bool EveryExpertIsUsable() const {
    const PlacementShape& shape = placement_.shape();
    for (int32_t layer = 0; layer < placement_.num_layers(); ++layer) {
      for (int32_t id = 0; id < shape.NumIds(LayerId(layer)); ++id) {
        if (!shape.Has(LayerId(layer), ExpertId(id))) continue;
        const auto services = placement_.Services(LayerId(layer), ExpertId(id));
        if (std::none_of(services.begin(), services.end(), [this](ServiceId service) {
              return directory_.IsExpertUsable(service);
            })) {
          return false;
        }
      }
    }
    return true;
  }

  const RemoteExpertsOptions options_;
  const Placement& placement_;
  Transport& transport_;
  PeerDirectory& directory_;
  const Clock& clock_;
  PeerDirectory::ListenerId listener_ = 0;

  // The stepping thread's own.
  uint64_t term_ = 0;
  MessageKey key_;  // of the step, then of the call
  bool is_resend_ = false;
  Lane lane_ = Lane::kDecode;
  std::vector<uint8_t> avoided_;  // by service: it failed in this step, and may be there
  std::vector<uint8_t> usable_;
  std::vector<absl::Duration> waits_;  // by service, of the step: each for itself, they overlap
  ResendBudget budget_;
  const DispatchPlan* plan_ = nullptr;  // of the call
  std::vector<ServiceId>* failed_ = nullptr;
  absl::Status fatal_;
  int num_open_ = 0;
  std::vector<size_t> taken_;
  uint64_t changes_taken_ = 0;
  std::vector<Question> questions_;  // by service

  mutable Mutex mutex_;
  DeliveryCondVar changed_{transport_.poller()};
  std::vector<size_t> arrived_ MOEBIUS_GUARDED_BY(mutex_);  // services, in order
  size_t wake_at_ MOEBIUS_GUARDED_BY(mutex_) = 1;           // deliveries that end a wait
  uint64_t num_changes_ MOEBIUS_GUARDED_BY(mutex_) = 0;     // of the directory
  bool shut_down_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::vector<ExpertTraffic> traffic_ MOEBIUS_GUARDED_BY(mutex_);  // by service
  std::array<int64_t, kNumFailoverReasons> failovers_ MOEBIUS_GUARDED_BY(mutex_) = {};
};

RemoteExperts::RemoteExperts(const RemoteExpertsOptions& options, const Placement& placement,
                             Transport* transport, PeerDirectory* directory, const Clock& clock)
    : impl_(std::make_unique<Impl>(options, placement, transport, directory, clock)) {}
RemoteExperts::~RemoteExperts() = default;

absl::Status RemoteExperts::BeginStep(const StepPlan& step) {
  impl_->BeginStep(step);
  return absl::OkStatus();
}
absl::Span<const uint8_t> RemoteExperts::usable_services() const {
  return impl_->usable_services();
}
absl::Status RemoteExperts::Forward(LayerId layer, const DispatchPlan& plan, ForwardCall call,
                                    Bf16Rows rows, absl::Span<const MutableBf16Rows> replies,
                                    std::vector<ServiceId>* failed) {
  return impl_->Forward(layer, plan, call, rows, replies, failed);
}
bool RemoteExperts::WaitUntilUsable(absl::Duration timeout) {
  return impl_->WaitUntilUsable(timeout);
}
void RemoteExperts::Shutdown() { impl_->Shutdown(); }
PortTraffic RemoteExperts::traffic() const { return impl_->traffic(); }
std::optional<ServiceWait> RemoteExperts::slowest_service() const {
  return impl_->slowest_service();
}

std::vector<ExpertTraffic> RemoteExperts::figures() const { return impl_->figures(); }
void RemoteExperts::WriteMetrics(MetricWriter& writer) const { impl_->WriteMetrics(writer); }

}  // namespace moebius
