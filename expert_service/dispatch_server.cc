// SPDX-License-Identifier: Apache-2.0
#include "expert_service/dispatch_server.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "expert_service/quanta.h"
#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/routing/assignments.h"
#include "moebius/wire/dispatch_codec.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"

namespace moebius {
namespace {

// Assignments that one row can have in a layer: the gate's choices and all slices.
int64_t MaxRowAssignments(const PlacementShape::Layer& layer) {
  return (layer.has_experts ? kMaxTopK : 0) + layer.num_slices;
}

// What became of a dispatch.
enum class Outcome { kServed, kFailed, kRefused, kAbandoned };

}  // namespace

uint64_t MaxDispatchBytes(const PlacementShape& shape, int64_t hidden_size, int64_t row_budget) {
  int64_t per_row = 0;
  for (const PlacementShape::Layer& layer : shape.layers) {
    per_row = std::max(per_row, MaxRowAssignments(layer));
  }
  const auto rows = static_cast<uint64_t>(row_budget);
  return rows * static_cast<uint64_t>(hidden_size) * sizeof(Bf16) + kMessageAlignment +
         DispatchMetadataBytes(rows, rows * static_cast<uint64_t>(per_row));
}

class DispatchServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(const DispatchServerOptions& options, Transport* transport, Executor* executor,
       Forward forward, const Clock& clock)
      : options_(options),
        transport_(*transport),
        executor_(*executor),
        forward_(std::move(forward)),
        clock_(clock),
        queue_(options.queue) {
    figures_.expert_rows.resize(options.shape.layers.size());
    for (size_t layer = 0; layer < options.shape.layers.size(); ++layer) {
      const int32_t num_ids = options.shape.NumIds(LayerId(static_cast<int32_t>(layer)));
      figures_.expert_rows[layer].resize(static_cast<size_t>(num_ids));
    }
  }

  absl::Status Start() {
    ReservationSpec spec;
    spec.scope = ReservationScope::kKind;
    spec.key.kind = kDispatchKind;
    spec.max_message_bytes =
        MaxDispatchBytes(options_.shape, options_.hidden_size, options_.row_budget);
    spec.max_messages = options_.max_arriving;
    spec.on_delivery = [self = this->shared_from_this()](Delivery delivery) {
      self->OnDelivery(std::move(delivery));
    };
    spec.on_refused = [self = this->shared_from_this()](const RefusedMessage& refused) {
      self->OnRefused(refused);
    };
    MOEBIUS_ASSIGN_OR_RETURN(reservation_, transport_.Reserve(std::move(spec)));
    thread_ = std::thread([this] { Serve(); });
    return absl::OkStatus();
  }

  void Stop() {
    transport_.CancelReservation(reservation_);
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.SignalAll();
      while (is_delivery_serving_) changed_.Wait(mutex_);
    }
    if (thread_.joinable()) thread_.join();
  }

  void OnPeerState(const PeerInfo& peer) {
    if (peer.state != PeerState::kDead) return;
    MutexLock lock(mutex_);
    figures_.abandoned += static_cast<int64_t>(queue_.RemoveFrom(peer.id));
    changed_.SignalAll();
  }

  bool Drain(absl::Duration timeout) {
    const absl::Duration end = Clock::Monotonic().Now() + timeout;
    MutexLock lock(mutex_);
    draining_ = true;
    while (queue_.size() > 0 || is_serving_) {
      const absl::Duration left = end - Clock::Monotonic().Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitWithTimeout(mutex_, left);
    }
    return true;
  }

  DispatchServerFigures figures() const {
    MutexLock lock(mutex_);
    DispatchServerFigures figures = figures_;
    figures.waiting = static_cast<int64_t>(queue_.size());
    figures.waiting_bytes = queue_.bytes();
    return figures;
  }

 private:
  // On a thread of the transport: answers a brief dispatch, queues any other, or says at once that
  // it cannot be.
  void OnDelivery(Delivery delivery) {
    if (!delivery.message.ok()) return;  // the transport ends
    WaitingDispatch dispatch{delivery.source, delivery.lane, *std::move(delivery.message),
                             clock_.Now()};
    absl::Status refusal;
    {
      MutexLock lock(mutex_);
      ++figures_.dispatches;
      if (stopping_ || draining_) {
        refusal = absl::UnavailableError("this expert service is draining");
      } else if (CanServeNow(dispatch)) {
        is_serving_ = is_delivery_serving_ = true;
        CountWait(dispatch, dispatch.arrived);
      } else if (queue_.TryPush(dispatch)) {
        changed_.SignalAll();
        return;
      } else {
        refusal = absl::ResourceExhaustedError(
            absl::StrCat(queue_.size(), " dispatches of ", queue_.bytes(), " bytes wait already"));
      }
    }
    if (refusal.ok()) return ServeNow(dispatch);
    Reply(dispatch, BuildFailedReply(ReplyKey(dispatch), refusal), Outcome::kRefused);
  }

  bool CanServeNow(const WaitingDispatch& dispatch) const MOEBIUS_REQUIRES(mutex_) {
    return dispatch.lane == Lane::kDecode && !is_serving_ && queue_.size() == 0 &&
           static_cast<int64_t>(dispatch.message.num_rows) <= options_.brief_rows;
  }

  // On the thread that delivered it: no other is woken, save for what came meanwhile.
  void ServeNow(const WaitingDispatch& dispatch) {
    Answer(dispatch, received_);
    MutexLock lock(mutex_);
    ++figures_.delivered_served;
    is_serving_ = is_delivery_serving_ = false;
    if (queue_.size() > 0 || draining_ || stopping_) changed_.SignalAll();
  }

  // On a thread of the transport: a dispatch that had no room to arrive in.
  void OnRefused(const RefusedMessage& refused) {
    {
      MutexLock lock(mutex_);
      ++figures_.dispatches;
    }
    const WaitingDispatch dispatch{refused.source, refused.lane, refused.header, clock_.Now()};
    const absl::Status reason = WithContext(refused.reason, "dispatch");
    Reply(dispatch, BuildFailedReply(ReplyKey(dispatch), reason), Outcome::kRefused);
  }

  void Serve() {
    while (std::optional<WaitingDispatch> dispatch = Next()) {
      Answer(*dispatch, received_);
      MutexLock lock(mutex_);
      is_serving_ = false;
      changed_.SignalAll();
    }
  }

  // The next dispatch; nothing when the server stops.
  std::optional<WaitingDispatch> Next() {
    MutexLock lock(mutex_);
    while ((queue_.size() == 0 || is_serving_) && !stopping_) changed_.Wait(mutex_);
    if (stopping_) return std::nullopt;
    const absl::Duration now = clock_.Now();
    std::optional<WaitingDispatch> dispatch = queue_.Pop(now);
    is_serving_ = true;
    CountWait(*dispatch, now);
    return dispatch;
  }

  // Between two quanta of a bulk dispatch, inside its body.
  void ServeDecode() {
    const absl::Duration begin = clock_.Now();
    absl::Duration now = begin;
    while (now - begin < kMaxQuantum) {
      std::optional<WaitingDispatch> dispatch;
      {
        MutexLock lock(mutex_);
        if (!stopping_) dispatch = queue_.PopDecode();
        if (!dispatch.has_value()) break;
        CountWait(*dispatch, now);
      }
      Answer(*dispatch, received_in_pause_);
      now = clock_.Now();
    }
    paused_ += now - begin;
  }

  void CountWait(const WaitingDispatch& dispatch, absl::Duration now) MOEBIUS_REQUIRES(mutex_) {
    double& waited =
        dispatch.lane == Lane::kDecode ? figures_.decode_wait_seconds : figures_.bulk_wait_seconds;
    waited += absl::ToDoubleSeconds(now - dispatch.arrived);
    if (options_.instruments != nullptr) {
      options_.instruments->queue_wait_seconds.Observe(now - dispatch.arrived);
    }
  }

  void Answer(const WaitingDispatch& dispatch, ReceivedDispatch& received) {
    const absl::Duration budget = absl::Milliseconds(dispatch.message.budget_ms);
    if (dispatch.message.budget_ms > 0 && clock_.Now() - dispatch.arrived >= budget) {
      const absl::Status late = absl::DeadlineExceededError(
          absl::StrCat("waited here for longer than the ", dispatch.message.budget_ms,
                       " ms that the dispatch had left"));
      Reply(dispatch, BuildFailedReply(ReplyKey(dispatch), late), Outcome::kRefused);
      return;
    }
    absl::StatusOr<Message> reply = Compute(dispatch, received);
    if (reply.ok()) {
      Reply(dispatch, *std::move(reply), Outcome::kServed);
    } else {
      if (IsNotHeld(reply.status())) NoteNotHeld(reply.status());
      Reply(dispatch, BuildFailedReply(ReplyKey(dispatch), reply.status()), Outcome::kFailed);
    }
  }

  absl::StatusOr<Message> Compute(const WaitingDispatch& waiting, ReceivedDispatch& received) {
    MOEBIUS_RETURN_IF_ERROR(Decode(waiting.message, received));
    const ServiceDispatch& dispatch = received.dispatch();
    const LayerId layer(static_cast<int32_t>(waiting.message.key.layer));
    const int64_t width = options_.hidden_size;
    BytesBuilder bytes(static_cast<size_t>(dispatch.num_reply_rows * width) * sizeof(Bf16));
    const MutableBf16Rows replies(reinterpret_cast<Bf16*>(bytes.data()), dispatch.num_reply_rows,
                                  width);
    absl::Status status;
    absl::Duration busy;
    executor_.Run([&] {
      const absl::Duration begin = clock_.Now();
      if (waiting.lane == Lane::kDecode) {
        status = forward_(layer, dispatch, received.rows(), replies, nullptr);
        busy = clock_.Now() - begin;
      } else {
        paused_ = absl::ZeroDuration();
        status = forward_(layer, dispatch, received.rows(), replies, [this] { ServeDecode(); });
        busy = clock_.Now() - begin - paused_;
      }
    });
    CountForward(layer, dispatch, busy, status.ok());
    MOEBIUS_RETURN_IF_ERROR(status);
    return BuildReply(ReplyKey(waiting), std::move(bytes).Share(), dispatch.num_reply_rows, width);
  }

  // The message ─▶ received, whose reply is no larger than a router can have asked for.
  absl::Status Decode(const Message& message, ReceivedDispatch& received) const {
    const PlacementShape& shape = options_.shape;
    if (message.key.layer >= shape.layers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("dispatch: layer ", message.key.layer,
                                                     "; this model has ", shape.layers.size()));
    }
    const LayerId layer(static_cast<int32_t>(message.key.layer));
    MOEBIUS_RETURN_IF_ERROR(received.Decode(message, options_.hidden_size, shape.NumIds(layer)));
    const ServiceDispatch& dispatch = received.dispatch();
    const int64_t per_row = MaxRowAssignments(shape.LayerAt(layer));
    if (dispatch.num_rows() > options_.row_budget ||
        dispatch.num_assignments() > dispatch.num_rows() * per_row) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dispatch: ", dispatch.num_assignments(), " assignments of ", dispatch.num_rows(),
          " rows; at most ", per_row, " of each of ", options_.row_budget, " rows are taken"));
    }
    return absl::OkStatus();
  }

  void NoteNotHeld(const absl::Status& status) {
    {
      MutexLock lock(mutex_);
      ++figures_.not_held;
    }
    if (options_.on_not_held) options_.on_not_held(status);
  }

  void CountForward(LayerId layer, const ServiceDispatch& dispatch, absl::Duration busy,
                    bool served) {
    if (options_.instruments != nullptr) {
      options_.instruments->batch_rows.Observe(static_cast<double>(dispatch.num_rows()));
      options_.instruments->compute_seconds.Observe(busy);
    }
    MutexLock lock(mutex_);
    figures_.busy_seconds += absl::ToDoubleSeconds(busy);
    if (!served) return;
    figures_.rows += dispatch.num_rows();
    figures_.assignments += dispatch.num_assignments();
    figures_.reply_rows += dispatch.num_reply_rows;
    std::vector<int64_t>& rows = figures_.expert_rows[static_cast<size_t>(layer.value())];
    for (const ExpertSegment& segment : dispatch.experts) {
      rows[static_cast<size_t>(segment.id.value())] += segment.end - segment.begin;
    }
  }

  static MessageKey ReplyKey(const WaitingDispatch& dispatch) {
    MessageKey key = dispatch.message.key;
    key.kind = kDispatchReplyKind;
    return key;
  }

  // Sends `reply` to the life of the router that asked; `outcome` is what becomes of the dispatch
  // when that works.
  void Reply(const WaitingDispatch& dispatch, Message reply, Outcome outcome) {
    reply.term = dispatch.message.term;
    reply.epoch = dispatch.message.epoch;
    SendOptions send;
    send.incarnation = dispatch.message.incarnation;
    if (dispatch.message.budget_ms > 0) {
      send.timeout = absl::Milliseconds(dispatch.message.budget_ms);
    }
    if (!transport_.Send(dispatch.source, dispatch.lane, std::move(reply), std::move(send)).ok()) {
      outcome = Outcome::kAbandoned;
    }
    MutexLock lock(mutex_);
    ++CounterOf(outcome);
  }

  int64_t& CounterOf(Outcome outcome) MOEBIUS_REQUIRES(mutex_) {
    switch (outcome) {
      case Outcome::kServed:
        return figures_.served;
      case Outcome::kFailed:
        return figures_.failed;
      case Outcome::kRefused:
        return figures_.refused;
      case Outcome::kAbandoned:
        break;
    }
    return figures_.abandoned;
  }

  const DispatchServerOptions options_;
  Transport& transport_;
  Executor& executor_;
  const Forward forward_;
  const Clock& clock_;
  ReservationId reservation_;
  // Of whoever serves: the serving thread, or one that delivers.
  ReceivedDispatch received_;
  ReceivedDispatch received_in_pause_;
  absl::Duration paused_;  // of the bulk dispatch at hand, spent on others

  mutable Mutex mutex_;
  CondVar changed_;
  DispatchQueue queue_ MOEBIUS_GUARDED_BY(mutex_);
  DispatchServerFigures figures_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_serving_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_delivery_serving_ MOEBIUS_GUARDED_BY(mutex_) = false;  // on a thread of the transport
  bool draining_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool stopping_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

DispatchServer::DispatchServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
DispatchServer::~DispatchServer() { impl_->Stop(); }

absl::StatusOr<std::unique_ptr<DispatchServer>> DispatchServer::Start(
    const DispatchServerOptions& options, Transport* transport, Executor* executor, Forward forward,
    const Clock& clock) {
  auto impl = std::make_shared<Impl>(options, transport, executor, std::move(forward), clock);
  MOEBIUS_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<DispatchServer>(new DispatchServer(std::move(impl)));
}

void DispatchServer::OnPeerState(const PeerInfo& peer) { impl_->OnPeerState(peer); }
bool DispatchServer::Drain(absl::Duration timeout) { return impl_->Drain(timeout); }
DispatchServerFigures DispatchServer::figures() const { return impl_->figures(); }

}  // namespace moebius
