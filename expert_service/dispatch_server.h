// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "expert_service/dispatch_queue.h"
#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/base/strong_id.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/dispatch.h"
#include "moebius/telemetry/instruments.h"
#include "moebius/tensor/rows.h"
#include "moebius/transport/peer_info.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// What a server counts with besides its figures, in buckets. Thread-safe.
struct DispatchInstruments {
  Histogram batch_rows{Metric::kExpertBatchRows};
  Histogram compute_seconds{Metric::kExpertComputeSeconds};
  Histogram queue_wait_seconds{Metric::kExpertQueueWaitSeconds};
};

struct DispatchServerOptions {
  PlacementShape shape;
  int64_t hidden_size = 0;
  int64_t row_budget = 1;      // rows of the largest step of any router
  uint32_t max_arriving = 16;  // dispatches that may be arriving at the same time
  /// A decode dispatch of no more rows is answered by the thread that delivers it when nothing else
  /// is at work (BriefRows); 0: none.
  int64_t brief_rows = 0;
  DispatchQueueLimits queue;
  DispatchInstruments* instruments = nullptr;  // outlives the server; null: none
  /// Told why a dispatch was answered with NOT_HELD, before the answer leaves; from the thread that
  /// answers, as often as a router asks. May be null; never blocks.
  std::function<void(const absl::Status&)> on_not_held;
};

/// Counts since the start, and what waits now.
struct DispatchServerFigures {
  int64_t dispatches = 0;  // arrived; = served + failed + refused + abandoned + those under way
  int64_t served = 0;      // answered with rows
  int64_t failed = 0;      // answered with a failure of its content or of the forward pass
  int64_t not_held = 0;    // of the failed: asked for an expert that is not here
  int64_t refused = 0;     // answered with "no room", "draining" or "too late"
  int64_t abandoned = 0;   // nobody to answer: the router died, or its life is over
  int64_t rows = 0;        // of what was served
  int64_t assignments = 0;
  int64_t reply_rows = 0;
  double busy_seconds = 0;         // in the forward pass
  double decode_wait_seconds = 0;  // from arrival to service, summed over dispatches
  double bulk_wait_seconds = 0;
  int64_t waiting = 0;
  uint64_t waiting_bytes = 0;
  int64_t delivered_served = 0;  // of the served: by the thread that delivered them
  std::vector<std::vector<int64_t>> expert_rows;  // [layer][id]: assignments that were served
};

/// Answers dispatches that routers send over a transport: the data plane of an expert service.
///
/// Invariants:
/// 1. Room for what may arrive is reserved from Start on, so that no router asks for it.
/// 2. Every dispatch is answered once, under its own key, term and epoch, unless its router's life
///    has ended: nothing is ever sent to a later life.
/// 3. Nothing is kept between dispatches: no step, no session, no router.
/// 4. What a dispatch says is checked before anything is computed or allocated by it; a bad one
///    costs its sender an INVALID_ARGUMENT and nobody else anything.
///
/// 5. What finds no room is answered at once: nobody waits for a deadline.
///
/// Dispatches are decoded and answered on a thread of its own and computed on the executor, in the
/// order of DispatchQueue; where a bulk one pauses, decode is served for at most as long as a
/// quantum of it takes. A brief one that finds nothing at work is answered where it is delivered.
/// Thread-safe.
class DispatchServer {
 public:
  /// ExpertPipeline::Forward, or what stands for it. On an executor thread, one call at a time, and
  /// one more inside its pauses.
  using Forward =
      std::function<absl::Status(LayerId layer, const ServiceDispatch& dispatch, Bf16Rows rows,
                                 MutableBf16Rows replies, const std::function<void()>& pause)>;

  /// Borrows transport, executor and clock. The status of the reservation when there is no room,
  /// or another server on the same transport.
  static absl::StatusOr<std::unique_ptr<DispatchServer>> Start(const DispatchServerOptions& options,
                                                               Transport* transport,
                                                               Executor* executor, Forward forward,
                                                               const Clock& clock);
  /// Ends after the dispatch at hand; those that wait are not answered.
  ~DispatchServer();

  /// For the transport's watcher: drops what a dead router has waiting. Never blocks.
  void OnPeerState(const PeerInfo& peer);

  /// From now on new dispatches are told to go elsewhere (UNAVAILABLE). Returns true once all that
  /// came before are answered, false after `timeout` of real time.
  bool Drain(absl::Duration timeout);

  DispatchServerFigures figures() const;

 private:
  class Impl;
  explicit DispatchServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // shared with deliveries that have begun
};

/// The largest dispatch that a router sends in a step of `row_budget` rows: what to reserve.
uint64_t MaxDispatchBytes(const PlacementShape& shape, int64_t hidden_size, int64_t row_budget);

}  // namespace moebius
