// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "absl/status/status.h"

#include "attention_service/attention_pipeline.h"
#include "attention_service/peer_exchange.h"
#include "moebius/base/mutex.h"
#include "moebius/base/turn_queue.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// Counts of a rank since it was made.
struct RankFigures {
  int64_t steps = 0;         // committed here
  int64_t failed_steps = 0;  // that could not begin, or in which a layer failed here
  int64_t rows = 0;          // through a layer
  int64_t messages = 0;      // of a router, taken
  int64_t refused = 0;       // from nobody's router, unreadable, or beyond the queue
  int64_t delivered = 0;     // of the messages: done by the thread that delivered them
  KvUsage kv;
  ShardFigures shard;
  ExchangeFigures exchange;
};

/// The door of an attention rank on the data plane: takes plans, rows and ends of a router and runs
/// them, one after the other, on a thread of its own; what belongs to a brief step
/// (AttentionPipeline) and finds nothing at work, on the thread that delivers it.
///
/// Plans, ends and session ends come over the control lane, hence in order; rows over the decode or
/// bulk lane. Rows that overtake their plan are parked. A rank that could not begin a step says so
/// in its reply to the first rows; one without rows of the step says so to the ranks that ask it.
/// A plan of a newer attempt aborts the open step; so do an abort and the router's death, at once,
/// also while the rank waits for others.
///
/// KV belongs to the router that made it: its lease is its connection, which ends within the
/// transport's promise. Then all sessions are freed.
///
/// Thread-safe.
class AttentionRank {
 public:
  struct Options {
    int64_t hidden_size = 0;
    int64_t row_budget = 1;   // rows of the largest step
    double kernel_flops = 0;  // what the rank says when it is probed; 0: not known
  };

  /// Borrows all; `exchange` is null for a rank alone, else the pipeline's.
  AttentionRank(const Options& options, AttentionPipeline& pipeline, PeerExchange* exchange,
                Transport& transport);
  ~AttentionRank();
  AttentionRank(const AttentionRank&) = delete;
  AttentionRank& operator=(const AttentionRank&) = delete;

  /// Makes the standing room, for the largest step.
  absl::Status Start();

  /// From the reactor. Only messages of the router that is up are taken.
  void OnRouterUp(PeerId router);
  void OnRouterDown(PeerId router);

  RankFigures figures() const;

 private:
  struct Event {
    std::optional<Delivery> delivery;  // a message; none: the router went down
  };
  // What deliveries go through: one that has begun may end after its reservation.
  struct Door {
    Mutex mutex;
    AttentionRank* owner MOEBIUS_GUARDED_BY(mutex) = nullptr;
  };

  absl::Status Reserve(FrameKind kind, uint64_t max_bytes, uint32_t max_messages);
  void OnDelivery(Delivery delivery);
  bool TryRunNow(const Delivery& delivery);
  bool TryBeginNow(const Message& message);
  bool TryContinueNow(const Delivery& delivery);
  void Run();
  void Take(Event event);
  void BeginStep(const StepPlan& plan);
  void RunRows(const Delivery& delivery);
  void EndStep(const Message& message);
  void EndAllSessions();
  absl::StatusOr<Message> RunLayer(const Message& message);
  void Reply(const Delivery& delivery, Message reply);
  void CancelIfRunning(const Message& message);
  void Count(int64_t RankFigures::*counter, int64_t by = 1);

  const Options options_;
  AttentionPipeline& pipeline_;
  PeerExchange* const exchange_;
  Transport& transport_;
  const std::shared_ptr<Door> door_;
  std::vector<ReservationId> reservations_;

  mutable Mutex mutex_;
  std::optional<PeerId> router_ MOEBIUS_GUARDED_BY(mutex_);
  std::optional<StepKey> aborted_ MOEBIUS_GUARDED_BY(mutex_);  // steps up to it need no more work
  RankFigures figures_ MOEBIUS_GUARDED_BY(mutex_);

  // Of whoever has the turn.
  StepPlan plan_;                 // scratch
  std::optional<StepKey> open_;   // the last plan's
  bool is_over_ = false;          // its end has come
  absl::Status begun_;            // how that plan began
  bool failed_ = false;           // a layer of it failed
  std::vector<Delivery> parked_;  // rows whose plan has not come yet
  std::set<SessionId> sessions_;

  TurnQueue<Event> events_;
  std::thread thread_;
};

}  // namespace moebius
