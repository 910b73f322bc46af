// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "moebius/attention/session_method.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/span.h"
#include "moebius/attention/step_plan.h"
#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/delivery_cond_var.h"
#include "moebius/transport/transport.h"
#include "router_service/peer_directory.h"
#include "router_service/ports.h"

namespace moebius {

/// What N ranks with these pools hold together, as one pool: blocks of N spans. Safe for every
/// session, as a rank holds at most ⌈spans / N⌉ spans of it. Under the per-degree sum a rank holds
/// up to two key blocks more than its share of the positions (an uneven last unit, and two
/// generated blocks in a row), so that each block of the pool takes two more of a rank's.
KvPool SharedKvPool(absl::Span<const KvPool> ranks, const SpanGeometry& geometry);

/// Counts since the port was made.
struct RemoteAttentionFigures {
  int64_t messages_sent = 0;
  int64_t messages_received = 0;
  int64_t bytes_sent = 0;  // payloads: padded metadata and rows
  int64_t bytes_received = 0;
  int64_t lost_sessions = 0;
  double wait_seconds = 0;  // for replies
};

/// The attention ranks of other processes behind the router's port. Every rank is given every plan;
/// a row goes to the owner of its span, and a rank that shares heads of others' rows is asked
/// without rows of its own. A step takes, for each rank, one message for its plan and
/// one for its end, and for each layer and rank that takes part one message there and one back.
///
/// A rank that is gone, or silent for `timeout`, fails the step with UNAVAILABLE, which names it.
/// Its spans are lost: TakeLostSessions tells which sessions had some.
///
/// As a port: calls come from one thread at a time. figures is thread-safe.
class RemoteAttention final : public AttentionPort {
 public:
  struct Options {
    int32_t num_ranks = 1;
    int64_t hidden_size = 0;
    SpanGeometry geometry{128, 128};
    KvPool pool;  // of all ranks together (SharedKvPool); used_blocks is filled here
    absl::Duration timeout = absl::Seconds(60);  // of a layer
    uint64_t term = 0;
    MethodRule method;  // how prompt rows are shared; ranks and what the geometry has: filled here
  };

  /// Borrows all of them.
  RemoteAttention(const Options& options, Transport& transport, PeerDirectory& directory,
                  const Clock& clock);
  ~RemoteAttention() override;

  /// Chooses each session's first rank by its id. UNAVAILABLE when a rank is missing, or has lost
  /// what a session of the step needs. Whether KV has room is known with the first reply.
  absl::Status BeginStep(const StepPlan& step) override;
  absl::Status RunLayer(LayerId layer, Bf16Rows normed, MutableBf16Rows out) override;
  uint32_t step_methods() const override;
  absl::Status CommitStep() override;
  void AbortStep() override;
  void EndSession(SessionId session) override;
  KvPool kv_pool() const override;
  bool WaitUntilUsable(absl::Duration timeout) override;
  std::vector<SessionId> TakeLostSessions() override;
  PortTraffic traffic() const override;

  RemoteAttentionFigures figures() const;

 private:
  struct Held {
    int64_t length = 0;  // committed positions
    bool is_lost = false;
    int64_t prompt_length = 0;
  };

  // One rank's part of a layer.
  struct Reply {
    bool is_asked = false;  // its delivery will come, or has not been taken
    ReservationId reservation;
    std::optional<absl::StatusOr<Message>> message;  // guarded by mutex_
  };

  bool AllUsable() const;
  absl::Status FindRanks();
  void LoseRank(int32_t rank);
  void LoseStep();
  void EndQuestions();
  void OnDelivery(int32_t rank, Delivery delivery);
  absl::Status Ask(int32_t rank, LayerId layer, Bf16Rows normed);
  absl::Status Await();
  absl::Status CheckRanks() const;
  absl::Status TakeReply(int32_t rank, MutableBf16Rows out);
  absl::Status Send(int32_t rank, Lane lane, Message message);
  void SendToAll(const Message& message);

  const Options options_;
  Transport& transport_;
  PeerDirectory& directory_;
  const Clock& clock_;
  PeerDirectory::ListenerId listener_ = 0;

  std::vector<std::optional<PeerId>> ranks_;  // of the last step: another peer is another life
  std::map<SessionId, Held> sessions_;
  StepPlan plan_;  // of the open step
  bool is_open_ = false;
  std::vector<OwnedRows> owned_;  // per rank, of the open step
  std::vector<bool> takes_part_;  // per rank: it has rows, or heads of others' rows
  std::vector<Reply> replies_;    // per rank, of the layer that runs

  // What other threads write.
  mutable Mutex mutex_;
  DeliveryCondVar changed_;
  uint64_t num_changes_ MOEBIUS_GUARDED_BY(mutex_) = 0;  // of the directory
  RemoteAttentionFigures figures_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
