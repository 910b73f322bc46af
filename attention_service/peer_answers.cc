// SPDX-License-Identifier: Apache-2.0
#include "attention_service/peer_answers.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/wire/exchange_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

// Two rounds of each kind may be under way from each rank.
constexpr size_t kQuestionsOfARank = 6;
// Answers up to this many bytes are not held up by bulk.
constexpr uint64_t kDecodeAnswerBytes = uint64_t{1} << 20;

MessageKey AnswerKey(const Message& question) {
  MessageKey key = question.key;
  key.kind = key.kind == kKvRequestKind     ? kKvReplyKind
             : key.kind == kHeadRequestKind ? kHeadReplyKind
                                            : kStateReplyKind;
  return key;
}

// As many rows as there are.
Message BuildRowsReply(const MessageKey& key, SharedBytes rows, int64_t width) {
  const auto num_rows = static_cast<int64_t>(rows.size() / sizeof(Bf16)) / width;
  return BuildReply(key, std::move(rows), num_rows, width);
}

}  // namespace

PeerAnswers::PeerAnswers(const ExchangeShape& shape, int32_t num_ranks, Transport& transport)
    : shape_(shape),
      max_parked_(kQuestionsOfARank * static_cast<size_t>(num_ranks)),
      transport_(transport),
      door_(std::make_shared<Door>()),
      thread_([this] { Serve(); }) {
  MutexLock lock(door_->mutex);
  door_->owner = this;
}

PeerAnswers::~PeerAnswers() {
  for (const ReservationId id : reservations_) transport_.CancelReservation(id);
  {
    MutexLock lock(door_->mutex);
    door_->owner = nullptr;
  }
  {
    MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

absl::Status PeerAnswers::Start() {
  const auto reserve = [&](FrameKind kind, uint64_t max_bytes) -> absl::Status {
    ReservationSpec spec;
    spec.scope = ReservationScope::kKind;
    spec.key.kind = kind;
    spec.max_message_bytes = max_bytes;
    // One of each lane and rank at a time: messages of a lane come one after the other.
    spec.max_messages = static_cast<uint32_t>(max_parked_ / kQuestionsOfARank);
    spec.on_delivery = [door = door_](Delivery delivery) {
      MutexLock lock(door->mutex);
      if (door->owner != nullptr) door->owner->OnQuestion(std::move(delivery));
    };
    MOEBIUS_ASSIGN_OR_RETURN(const ReservationId id, transport_.Reserve(std::move(spec)));
    reservations_.push_back(id);
    return absl::OkStatus();
  };
  MOEBIUS_RETURN_IF_ERROR(reserve(kKvRequestKind, shape_.MaxKvRequestBytes()));
  MOEBIUS_RETURN_IF_ERROR(reserve(kHeadRequestKind, 2 * kMessageAlignment));
  return reserve(kQueryStatesKind, shape_.MaxQueryBytes());
}

void PeerAnswers::OnQuestion(Delivery delivery) {
  if (!delivery.message.ok()) return;  // the transport ends
  {
    MutexLock lock(mutex_);
    if (questions_.size() < max_parked_) {
      questions_.push_back({delivery.source, *std::move(delivery.message)});
      changed_.SignalAll();
      return;
    }
  }
  Send(delivery.source, BuildFailedReply(AnswerKey(*delivery.message),
                                         absl::ResourceExhaustedError(absl::StrCat(
                                             max_parked_, " questions of ranks are waiting"))));
}

void PeerAnswers::Attach(KvHolder* holder) {
  MutexLock lock(mutex_);
  while (is_serving_) changed_.Wait(mutex_);
  holder_ = holder;
  changed_.SignalAll();
}

void PeerAnswers::BeginStep(const StepPlan& plan) {
  MutexLock lock(mutex_);
  last_ = StepKey::Of(plan);
  refusal_ = absl::OkStatus();
  published_.clear();
  shown_heads_.clear();
  committed_.clear();
  for (const SessionRows& rows : plan.sessions) {
    committed_.emplace(rows.session,
                       Committed{.spans = SessionSpans(shape_.geometry, rows.prompt_length),
                                 .length = rows.position_begin});
  }
  is_open_ = true;
  changed_.SignalAll();
}

void PeerAnswers::RefuseStep(const StepPlan& plan, const absl::Status& status) {
  MutexLock lock(mutex_);
  last_ = StepKey::Of(plan);
  refusal_ = status;
  is_open_ = false;
  changed_.SignalAll();
}

void PeerAnswers::Publish(int64_t layer) {
  MutexLock lock(mutex_);
  published_.insert(layer);
  if (!questions_.empty()) changed_.SignalAll();
}

void PeerAnswers::PublishHeads(int64_t layer, HeadPhase phase) {
  MutexLock lock(mutex_);
  shown_heads_.emplace(layer, phase);
  if (!questions_.empty()) changed_.SignalAll();
}

void PeerAnswers::CloseHeads() {
  MutexLock lock(mutex_);
  shown_heads_.clear();
  while (is_serving_) changed_.Wait(mutex_);
}

void PeerAnswers::EndStep() {
  MutexLock lock(mutex_);
  is_open_ = false;
  shown_heads_.clear();
  while (is_serving_) changed_.Wait(mutex_);
  if (!questions_.empty()) changed_.SignalAll();
}

int64_t PeerAnswers::num_parked() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(questions_.size());
}

void PeerAnswers::Serve() {
  while (true) {
    std::optional<Question> question;
    absl::Status refusal;
    KvHolder* holder = nullptr;
    {
      MutexLock lock(mutex_);
      while (!is_stopping_ && !(question = TakeQuestion(&refusal)).has_value()) {
        changed_.Wait(mutex_);
      }
      if (is_stopping_) return;
      holder = holder_;
      is_serving_ = refusal.ok();
    }
    absl::StatusOr<Message> answer =
        refusal.ok() ? Answer(*holder, question->message) : absl::StatusOr<Message>(refusal);
    {
      MutexLock lock(mutex_);
      is_serving_ = false;
      changed_.SignalAll();
    }
    Send(question->source, answer.ok()
                               ? *std::move(answer)
                               : BuildFailedReply(AnswerKey(question->message), answer.status()));
  }
}

// The oldest question whose turn has come.
std::optional<PeerAnswers::Question> PeerAnswers::TakeQuestion(absl::Status* refusal) {
  for (auto it = questions_.begin(); it != questions_.end(); ++it) {
    if (TurnOf(it->message, refusal) == Turn::kPark) continue;
    std::optional<Question> question(std::move(*it));
    questions_.erase(it);
    return question;
  }
  return std::nullopt;
}

PeerAnswers::Turn PeerAnswers::TurnOf(const Message& message, absl::Status* refusal) const {
  *refusal = absl::OkStatus();
  const StepKey key = StepKey::Of(message);
  if (!last_.has_value() || key > *last_) return Turn::kPark;
  if (key == *last_ && is_open_ && holder_ != nullptr) {
    return IsThere(message) ? Turn::kAnswer : Turn::kPark;
  }
  *refusal = key == *last_ && !refusal_.ok()
                 ? refusal_
                 : absl::AbortedError(
                       absl::StrCat("step ", key.step, ", attempt ", key.attempt, " is over here"));
  return Turn::kRefuse;
}

// True also for what makes no sense: the answer then says so.
bool PeerAnswers::IsThere(const Message& message) const {
  const int64_t layer = message.key.layer;
  if (message.key.kind != kHeadRequestKind) {
    return published_.contains(layer) || IsCommitted(message);
  }
  const auto request = ParseHeadRequest(message);
  return !request.ok() || shown_heads_.contains({layer, request->phase});
}

bool PeerAnswers::IsCommitted(const Message& message) const {
  if (message.key.kind == kKvRequestKind) {
    const auto request = ParseKvRequest(message);
    if (!request.ok()) return true;
    for (const SessionSpan& span : request->spans) {
      const Committed* committed = FindCommitted(span.session);
      if (committed != nullptr &&
          committed->spans.SpanPositions(span.span).end > committed->length) {
        return false;
      }
    }
    return true;
  }
  const auto query = ParseQueryStates(message, shape_.num_heads, shape_.head_size);
  if (!query.ok()) return true;
  for (const QueriedRows& part : query->parts) {
    const Committed* committed = FindCommitted(part.session);
    if (committed == nullptr) continue;
    const SessionSpans& spans = committed->spans;
    const int64_t end = spans.SpanPositions(spans.EndOfAskedSpans(part.position_begin)).begin;
    if (end > committed->length) return false;
  }
  return true;
}

const PeerAnswers::Committed* PeerAnswers::FindCommitted(SessionId session) const {
  const auto found = committed_.find(session);
  return found == committed_.end() ? nullptr : &found->second;
}

absl::StatusOr<Message> PeerAnswers::Answer(KvHolder& holder, const Message& question) const {
  const MessageKey key = AnswerKey(question);
  const int64_t layer = question.key.layer;
  if (question.key.kind == kKvRequestKind) {
    MOEBIUS_ASSIGN_OR_RETURN(const KvRequest request, ParseKvRequest(question));
    MOEBIUS_ASSIGN_OR_RETURN(SharedBytes rows, holder.ReadSpans(layer, request));
    return BuildRowsReply(key, std::move(rows), shape_.KvRowWidth(request.kv_heads));
  }
  if (question.key.kind == kHeadRequestKind) {
    MOEBIUS_ASSIGN_OR_RETURN(const HeadRequest request, ParseHeadRequest(question));
    MOEBIUS_ASSIGN_OR_RETURN(SharedBytes rows, holder.ReadHeads(layer, request));
    return BuildRowsReply(
        key, std::move(rows),
        request.phase == HeadPhase::kQueries ? shape_.head_size : shape_.v_head_dim);
  }
  MOEBIUS_ASSIGN_OR_RETURN(const ReceivedQueries query,
                           ParseQueryStates(question, shape_.num_heads, shape_.head_size));
  MOEBIUS_ASSIGN_OR_RETURN(SharedBytes states,
                           holder.ComputeStates(layer, query.parts, query.queries.rows));
  const int64_t state_bytes = shape_.state_width() * static_cast<int64_t>(sizeof(float));
  const int64_t num_states = static_cast<int64_t>(states.size()) / state_bytes;
  return BuildStateReply(key, std::move(states), num_states, shape_.state_width());
}

void PeerAnswers::Send(PeerId to, Message answer) {
  const bool is_small = MessageBytes(answer) <= kDecodeAnswerBytes;
  const bool is_urgent = answer.key.kind == kStateReplyKind && is_small;
  const MessageKey key = answer.key;
  const auto sent = transport_.Send(to, is_urgent ? Lane::kDecode : Lane::kBulk, std::move(answer));
  if (sent.ok() || absl::IsUnavailable(sent.status())) return;
  // Too large, or no room in the queue: the asker hears that much.
  static_cast<void>(transport_.Send(to, Lane::kDecode, BuildFailedReply(key, sent.status())));
}

}  // namespace moebius
