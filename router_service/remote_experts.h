// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "moebius/base/clock.h"
#include "moebius/placement/placement.h"
#include "moebius/telemetry/registry.h"
#include "moebius/transport/transport.h"
#include "router_service/peer_directory.h"
#include "router_service/ports.h"

namespace moebius {

struct RemoteExpertsOptions {
  int64_t hidden_size = 0;
  int64_t decode_rows = 64;  // a step of at most so many rows goes over the decode lane
  /// What one dispatch may take before its rows go elsewhere, from sending to the whole reply.
  absl::Duration reply_timeout = absl::Seconds(10);
};

/// Why a dispatch's rows went elsewhere, as moebius_failovers_total has it.
enum class FailoverReason { kGone, kSuspect, kSilent, kRefused, kDamaged, kUnsent };
inline constexpr size_t kNumFailoverReasons = 6;

/// What went to one service and came back, since the start.
struct ExpertTraffic {
  int64_t dispatches = 0;  // sent
  int64_t rows = 0;
  int64_t reply_rows = 0;       // received
  uint64_t sent_bytes = 0;      // of messages, without frame headers
  uint64_t received_bytes = 0;  // the same
  double wait_seconds = 0;      // from sending to the reply, summed over replies
  int64_t failures = 0;         // dispatches whose rows had to go elsewhere, given_up included
  int64_t given_up = 0;         // of these, because the service was suspect
  int64_t resent_rows = 0;      // rows sent to it that another service had failed
};

/// The expert services of a cluster behind the router's port: one dispatch and one reply per
/// service and layer, over the lane of the step's size.
///
/// Invariants:
/// 1. The reply's room is reserved before its dispatch is sent: it waits for no credit here.
/// 2. All dispatches of a plan are on their way before the first reply is waited for; replies are
///    taken as they come, those of few rows together. Forward returns when each has been answered,
///    has failed or was given up: nothing of it arrives later.
/// 3. A service that is dead, silent for `reply_timeout`, refuses, or answers nonsense fails alone
///    and is not asked again in this step. One that is suspect is given up where others have its
///    experts, within a budget (resend_budget.h); else it is waited for.
/// 4. Beside the messages' own buffers nothing is allocated in steady state.
///
/// figures, WriteMetrics and Shutdown are thread-safe; the rest belongs to the stepping thread.
class RemoteExperts final : public ExpertPort {
 public:
  /// Borrows everything; `clock` is the transport's. The placement is the one that plans are made
  /// with.
  RemoteExperts(const RemoteExpertsOptions& options, const Placement& placement,
                Transport* transport, PeerDirectory* directory, const Clock& clock);
  ~RemoteExperts() override;

  absl::Status BeginStep(const StepPlan& step) override;
  absl::Span<const uint8_t> usable_services() const override;
  /// INVALID_ARGUMENT when a service, or the own limits, refuse the dispatch as such; UNAVAILABLE
  /// after Shutdown.
  absl::Status Forward(LayerId layer, const DispatchPlan& plan, ForwardCall call, Bf16Rows rows,
                       absl::Span<const MutableBf16Rows> replies,
                       std::vector<ServiceId>* failed) override;
  void EndStep() override {}
  bool WaitUntilUsable(absl::Duration timeout) override;

  /// Ends the call in progress and fails all that follow.
  void Shutdown();

  PortTraffic traffic() const override;
  std::optional<ServiceWait> slowest_service() const override;

  std::vector<ExpertTraffic> figures() const;  // by service
  void WriteMetrics(MetricWriter& writer) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
