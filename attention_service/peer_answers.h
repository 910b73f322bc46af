// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"

#include "attention_service/exchange_shape.h"
#include "attention_service/kv_exchange.h"
#include "moebius/attention/session_spans.h"
#include "moebius/base/mutex.h"
#include "moebius/base/spare_memory.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// Which attempt of which step, in the order in which a lead makes them.
struct StepKey {
  uint64_t term = 0;
  uint64_t step = 0;
  uint64_t attempt = 0;

  static StepKey Of(const StepPlan& plan) { return {plan.term, plan.step, plan.attempt}; }
  static StepKey Of(const Message& message) {
    return {message.term, message.key.step, message.key.attempt};
  }
  friend auto operator<=>(const StepKey&, const StepKey&) = default;
};

/// Answers other ranks' questions about the open step, on a thread of its own, so that it goes on
/// while this rank waits for others itself.
///
/// A question about a step that has not begun here is parked until it does; one about a layer of
/// the open step until this rank's own rows of the layer are stored (or the heads asked for are
/// there), unless it only touches positions that were committed before; one about an earlier step
/// is answered ABORTED, one about a refused step with the refusal. Parked questions are bounded:
/// more than a cluster of good ranks can ask at once are answered RESOURCE_EXHAUSTED.
///
/// Thread-safe.
class PeerAnswers {
 public:
  PeerAnswers(const ExchangeShape& shape, int32_t num_ranks, Transport& transport);
  ~PeerAnswers();
  PeerAnswers(const PeerAnswers&) = delete;
  PeerAnswers& operator=(const PeerAnswers&) = delete;

  /// Makes the standing room for questions.
  absl::Status Start();

  // As in KvExchange.
  void Attach(KvHolder* holder) MOEBIUS_EXCLUDES(mutex_);
  void BeginStep(const StepPlan& plan) MOEBIUS_EXCLUDES(mutex_);
  void RefuseStep(const StepPlan& plan, const absl::Status& status) MOEBIUS_EXCLUDES(mutex_);
  void Publish(int64_t layer) MOEBIUS_EXCLUDES(mutex_);
  void PublishHeads(int64_t layer, HeadPhase phase) MOEBIUS_EXCLUDES(mutex_);
  void CloseHeads() MOEBIUS_EXCLUDES(mutex_);
  void EndStep() MOEBIUS_EXCLUDES(mutex_);

  int64_t num_parked() const MOEBIUS_EXCLUDES(mutex_);

 private:
  struct Question {
    PeerId source;
    Message message;
  };
  // What deliveries go through: one that has begun may end after its reservation.
  struct Door {
    Mutex mutex;
    PeerAnswers* owner MOEBIUS_GUARDED_BY(mutex) = nullptr;
  };
  struct Committed {
    SessionSpans spans;
    int64_t length = 0;  // positions before the step
  };
  // What to do with a question now.
  enum class Turn { kPark, kAnswer, kRefuse };

  void OnQuestion(Delivery delivery) MOEBIUS_EXCLUDES(mutex_);
  void Serve() MOEBIUS_EXCLUDES(mutex_);
  std::optional<Question> TakeQuestion(absl::Status* refusal) MOEBIUS_REQUIRES(mutex_);
  Turn TurnOf(const Message& message, absl::Status* refusal) const MOEBIUS_REQUIRES(mutex_);
  bool IsThere(const Message& message) const MOEBIUS_REQUIRES(mutex_);
  bool IsCommitted(const Message& message) const MOEBIUS_REQUIRES(mutex_);
  // Null: of no session of the step.
  const Committed* FindCommitted(SessionId session) const MOEBIUS_REQUIRES(mutex_);
  absl::StatusOr<Message> Answer(KvHolder& holder, const Message& question) const;
  void Send(PeerId to, Message answer);

  const ExchangeShape shape_;
  const size_t max_parked_;
  Transport& transport_;

  mutable Mutex mutex_;
  CondVar changed_;
  KvHolder* holder_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  SpareDeque<Question> questions_ MOEBIUS_GUARDED_BY(mutex_);
  std::optional<StepKey> last_ MOEBIUS_GUARDED_BY(mutex_);  // begun or refused
  bool is_open_ MOEBIUS_GUARDED_BY(mutex_) = false;
  absl::Status refusal_ MOEBIUS_GUARDED_BY(mutex_);         // of last_
  std::set<int64_t> published_ MOEBIUS_GUARDED_BY(mutex_);  // layers of the open step
  // What heads may be read of, (layer, phase).
  std::set<std::pair<int64_t, HeadPhase>> shown_heads_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<SessionId, Committed> committed_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_serving_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_stopping_ MOEBIUS_GUARDED_BY(mutex_) = false;
  const std::shared_ptr<Door> door_;
  std::vector<ReservationId> reservations_;
  std::thread thread_;
};

}  // namespace moebius
