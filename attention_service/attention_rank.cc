// SPDX-License-Identifier: Apache-2.0
#include "attention_service/attention_rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/brief_work.h"
#include "moebius/base/status.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/probe_codec.h"
#include "moebius/wire/row_codec.h"
#include "moebius/wire/step_codec.h"

namespace moebius {
namespace {

// A step's end and the ends of all its sessions, twice.
constexpr size_t kMaxEvents = 2 * (kMaxStepSessions + 4);
// Rows that overtake their plan: one layer of one step on each lane.
constexpr size_t kMaxParked = 4;
// Messages of one kind that may be arriving at a time: one on each lane, of an old and a new
// router.
constexpr uint32_t kArriving = 4;
constexpr uint64_t kPlanBytes = 4 + 40 * uint64_t{kMaxStepSessions} + kMessageAlignment;
constexpr uint64_t kSmallBytes = 2 * kMessageAlignment;

}  // namespace

AttentionRank::AttentionRank(const Options& options, AttentionPipeline& pipeline,
                             PeerExchange* exchange, Transport& transport)
    : options_(options),
      pipeline_(pipeline),
      exchange_(exchange),
      transport_(transport),
      door_(std::make_shared<Door>()),
      events_(kMaxEvents),
      thread_([this] { Run(); }) {
  MutexLock lock(door_->mutex);
  door_->owner = this;
}

AttentionRank::~AttentionRank() {
  for (const ReservationId id : reservations_) transport_.CancelReservation(id);
  {
    MutexLock lock(door_->mutex);
    door_->owner = nullptr;
  }
  std::optional<PeerId> router;
  {
    MutexLock lock(mutex_);
    router = router_;
  }
  if (router.has_value()) OnRouterDown(*router);
  events_.Close();
  thread_.join();
}

absl::Status AttentionRank::Start() {
  const uint64_t rows_bytes =
      static_cast<uint64_t>(options_.row_budget * options_.hidden_size) * sizeof(Bf16);
  MOEBIUS_RETURN_IF_ERROR(Reserve(kStepPlanKind, kPlanBytes, kArriving));
  MOEBIUS_RETURN_IF_ERROR(Reserve(kStepEndKind, kSmallBytes, kArriving));
  MOEBIUS_RETURN_IF_ERROR(Reserve(kSessionEndKind, kSmallBytes, kArriving));
  MOEBIUS_RETURN_IF_ERROR(Reserve(kProbeKind, kMaxProbeBytes, kArriving));
  return Reserve(kAttentionRowsKind, rows_bytes + kMessageAlignment, kArriving);
}

absl::Status AttentionRank::Reserve(FrameKind kind, uint64_t max_bytes, uint32_t max_messages) {
  ReservationSpec spec;
  spec.scope = ReservationScope::kKind;
  spec.key.kind = kind;
  spec.max_message_bytes = max_bytes;
  spec.max_messages = max_messages;
  spec.on_delivery = [door = door_](Delivery delivery) {
    MutexLock lock(door->mutex);
    if (door->owner != nullptr) door->owner->OnDelivery(std::move(delivery));
  };
  MOEBIUS_ASSIGN_OR_RETURN(const ReservationId id, transport_.Reserve(std::move(spec)));
  reservations_.push_back(id);
  return absl::OkStatus();
}

void AttentionRank::OnRouterUp(PeerId router) {
  MutexLock lock(mutex_);
  router_ = router;
  aborted_.reset();
}

void AttentionRank::OnRouterDown(PeerId router) {
  {
    MutexLock lock(mutex_);
    if (router_ != router) return;
    router_.reset();
    aborted_ = StepKey{~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};
  }
  if (exchange_ != nullptr) {
    exchange_->CancelAny(absl::CancelledError("the router of the step is gone"));
  }
  // There is always room: the queue holds what one router can have sent, and this is the last of
  // it.
  Event event;
  if (!events_.TryPush(event)) Count(&RankFigures::refused);
}

// From a link or the reactor.
void AttentionRank::OnDelivery(Delivery delivery) {
  if (!delivery.message.ok()) return;  // the transport ends
  bool is_routers = false;
  {
    MutexLock lock(mutex_);
    is_routers = router_ == delivery.source;
  }
  if (!is_routers) return Count(&RankFigures::refused);
  if (delivery.message->key.kind == kProbeKind) {
    Count(&RankFigures::messages);
    return Reply(delivery, BuildProbeReply(*delivery.message, options_.kernel_flops));
  }
  CancelIfRunning(*delivery.message);
  if (TryRunNow(delivery)) return Count(&RankFigures::messages);
  Event event{.delivery = std::move(delivery)};
  Count(events_.TryPush(event) ? &RankFigures::messages : &RankFigures::refused);
}

// What is brief and has nothing before it: no other thread is woken.
bool AttentionRank::TryRunNow(const Delivery& delivery) {
  const Message& message = *delivery.message;
  if (message.key.kind == kSessionEndKind || !events_.TryTakeTurn()) return false;
  const bool is_done =
      message.key.kind == kStepPlanKind ? TryBeginNow(message) : TryContinueNow(delivery);
  if (is_done) Count(&RankFigures::delivered);
  events_.EndTurn();
  return is_done;
}

// A plan of few rows, unless rows wait for it or a step that may not be brief has to end first.
bool AttentionRank::TryBeginNow(const Message& message) {
  const bool ends_a_step = pipeline_.has_open_step() && !pipeline_.is_brief();
  if (ends_a_step || !parked_.empty()) return false;
  if (!ParseStepPlan(message, &plan_).ok() || plan_.num_rows > kMaxBriefRows) return false;
  BeginStep(plan_);
  return true;
}

// Rows and end of a brief step.
bool AttentionRank::TryContinueNow(const Delivery& delivery) {
  const Message& message = *delivery.message;
  if (!open_.has_value() || StepKey::Of(message) != *open_ || !pipeline_.is_brief()) return false;
  if (message.key.kind == kStepEndKind) {
    EndStep(message);
  } else {
    RunRows(delivery);
  }
  return true;
}

// An abort, or a plan that replaces the open step, ends the waits of that step at once; the event
// itself has its turn afterwards.
void AttentionRank::CancelIfRunning(const Message& message) {
  StepKey key = StepKey::Of(message);
  if (message.key.kind == kStepEndKind) {
    const auto end = ParseStepEnd(message);
    if (!end.ok() || *end != StepEnd::kAbort) return;
  } else if (message.key.kind == kStepPlanKind && key.attempt > 0) {
    --key.attempt;
  } else {
    return;
  }
  {
    MutexLock lock(mutex_);
    if (!aborted_.has_value() || *aborted_ < key) aborted_ = key;
  }
  if (exchange_ != nullptr) exchange_->Cancel(key, absl::CancelledError("the step was aborted"));
}

void AttentionRank::Run() {
  while (std::optional<Event> event = events_.PopAndTakeTurn()) {
    Take(*std::move(event));
    events_.EndTurn();
  }
  EndAllSessions();
}

void AttentionRank::Take(Event event) {
  if (!event.delivery.has_value()) return EndAllSessions();
  const Message& message = *event.delivery->message;
  if (message.key.kind == kStepPlanKind) {
    if (!ParseStepPlan(message, &plan_).ok()) return Count(&RankFigures::refused);
    BeginStep(plan_);
  } else if (message.key.kind == kAttentionRowsKind) {
    RunRows(*event.delivery);
  } else if (message.key.kind == kStepEndKind) {
    EndStep(message);
  } else if (const auto session = ParseSessionEnd(message); session.ok()) {
    pipeline_.EndSession(*session);
    sessions_.erase(*session);
  } else {
    Count(&RankFigures::refused);
  }
}

void AttentionRank::BeginStep(const StepPlan& plan) {
  open_ = StepKey::Of(plan);
  is_over_ = false;
  failed_ = false;
  begun_ = pipeline_.BeginStep(plan);
  if (begun_.ok()) {
    for (const SessionRows& rows : plan.sessions) sessions_.insert(rows.session);
  } else {
    Count(&RankFigures::failed_steps);
  }
  for (const Delivery& delivery : std::exchange(parked_, {})) RunRows(delivery);
}

void AttentionRank::RunRows(const Delivery& delivery) {
  const Message& message = *delivery.message;
  const StepKey key = StepKey::Of(message);
  MessageKey reply_key = message.key;
  reply_key.kind = kAttentionReplyKind;
  if (open_.has_value() && key == *open_) {
    absl::StatusOr<Message> reply = RunLayer(message);
    if (!reply.ok() && begun_.ok() && !is_over_ && !std::exchange(failed_, true)) {
      Count(&RankFigures::failed_steps);
    }
    return Reply(delivery,
                 reply.ok() ? *std::move(reply) : BuildFailedReply(reply_key, reply.status()));
  }
  if ((!open_.has_value() || key > *open_) && parked_.size() < kMaxParked) {
    parked_.push_back(delivery);
    return;
  }
  Reply(delivery,
        BuildFailedReply(reply_key, absl::AbortedError(absl::StrCat("step ", key.step, ", attempt ",
                                                                    key.attempt, " is not open"))));
}

absl::StatusOr<Message> AttentionRank::RunLayer(const Message& message) {
  MOEBIUS_RETURN_IF_ERROR(begun_);
  if (is_over_) return absl::AbortedError(absl::StrCat("step ", open_->step, " is over"));
  {
    MutexLock lock(mutex_);
    if (aborted_.has_value() && StepKey::Of(message) <= *aborted_) {
      return absl::AbortedError("the step was aborted");
    }
  }
  const int64_t num_rows = pipeline_.num_own_rows();
  MOEBIUS_ASSIGN_OR_RETURN(const ReceivedRows in, RowsOf(message, num_rows, options_.hidden_size));
  BytesBuilder builder(static_cast<size_t>(num_rows * options_.hidden_size) * sizeof(Bf16));
  const MutableBf16Rows out(reinterpret_cast<Bf16*>(builder.data()), num_rows,
                            options_.hidden_size);
  MOEBIUS_RETURN_IF_ERROR(pipeline_.RunLayer(message.key.layer, in.rows, out));
  Count(&RankFigures::rows, num_rows);
  MessageKey key = message.key;
  key.kind = kAttentionReplyKind;
  return BuildReply(key, std::move(builder).Share(), num_rows, options_.hidden_size);
}

void AttentionRank::Reply(const Delivery& delivery, Message reply) {
  reply.term = delivery.message->term;
  SendOptions send;
  send.incarnation = delivery.message->incarnation;
  // A router that is gone needs no answer; one whose queue is full has stopped reading.
  static_cast<void>(
      transport_.Send(delivery.source, delivery.lane, std::move(reply), std::move(send)));
}

void AttentionRank::EndStep(const Message& message) {
  const absl::StatusOr<StepEnd> end = ParseStepEnd(message);
  if (!end.ok()) return Count(&RankFigures::refused);
  if (!open_.has_value() || StepKey::Of(message) != *open_) return;
  // open_ stays: rows of this step that come late are known to be late.
  if (std::exchange(is_over_, true)) return;
  if (*end == StepEnd::kCommit && begun_.ok() && !failed_) {
    if (pipeline_.CommitStep().ok()) Count(&RankFigures::steps);
  } else {
    pipeline_.AbortStep();
  }
}

void AttentionRank::EndAllSessions() {
  pipeline_.AbortStep();
  for (const SessionId session : std::exchange(sessions_, {})) pipeline_.EndSession(session);
  open_.reset();
  parked_.clear();
}

void AttentionRank::Count(int64_t RankFigures::*counter, int64_t by) {
  MutexLock lock(mutex_);
  figures_.*counter += by;
}

RankFigures AttentionRank::figures() const {
  RankFigures figures;
  {
    MutexLock lock(mutex_);
    figures = figures_;
  }
  figures.kv = pipeline_.usage();
  figures.shard = pipeline_.shard_figures();
  if (exchange_ != nullptr) figures.exchange = exchange_->figures();
  return figures;
}

}  // namespace moebius
