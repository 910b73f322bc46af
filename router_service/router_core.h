// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/attention/attention_method.h"
#include "moebius/attention/cost_model.h"
#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/tokenizer.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/capacity.h"
#include "moebius/transport/transport.h"
#include "router_service/bias_control.h"
#include "router_service/expert_load.h"
#include "router_service/lead.h"
#include "router_service/request_log.h"
#include "router_service/roster.h"
#include "router_service/router_weights.h"
#include "router_service/row_pipeline.h"

namespace moebius {

struct RouterCoreOptions {
  int64_t row_budget = 512;                     // as the roster's
  int64_t chunk_rows = 0;                       // rows of one prompt in one step; 0: the row budget
  absl::Duration slow_step = absl::Seconds(1);  // as LeadOptions has it
  uint64_t term = 1;                            // as the roster's
  int32_t num_attention = 1;
  std::optional<AttentionMethod> attention_method;  // nothing: the cost model's choice
  std::optional<RankRates> rank_rates;              // nothing: MethodRule's
  CapacityPolicy capacity;                          // dropless
};

/// What a router computes with, once everybody is there: remote ports, row pipeline, lead, and the
/// thread that steps it. The same in a process of its own and in a cluster inside one process.
///
/// Thread-safe. Destruction aborts what still runs.
class RouterCore {
 public:
  struct Parts {
    const Checkpoint* checkpoint = nullptr;
    const RouterWeights* weights = nullptr;
    const Kernels* kernels = nullptr;
    Executor* executor = nullptr;
    const Tokenizer* tokenizer = nullptr;  // null: no stop strings
    const Placement* placement = nullptr;
    Transport* transport = nullptr;
    Roster* roster = nullptr;
    const Clock* clock = nullptr;   // the transport's
    ExpertLoad* load = nullptr;     // null: nowhere
    RequestLog* log = nullptr;      // null: none is kept
    BiasControl* biases = nullptr;  // null: the checkpoint's
    TraceRule tracing;              // nobody's spans
    SlowStepNotice on_slow_step;    // null: nobody hears of them
  };

  /// Call it when the roster misses nothing: the KV pool is what the ranks reported. Takes a token
  /// through all layers and services before it returns, and forgets it. The failure of that canary
  /// is returned; UNAVAILABLE is worth another call.
  static absl::StatusOr<std::unique_ptr<RouterCore>> Start(const Parts& parts,
                                                           const RouterCoreOptions& options);
  ~RouterCore();

  Lead& lead();
  RowPipeline& rows();
  const LeadOptions& lead_options() const;
  /// Those of the lead and of the way to the experts.
  void WriteMetrics(MetricWriter& writer) const;

 private:
  class Impl;
  explicit RouterCore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// What exists in a model, for a placement.
PlacementShape BuildPlacementShape(const ModelConfig& config);

/// The placement of M expert services with R replicas of each routed expert; slices of shared
/// experts are everywhere. INVALID_ARGUMENT for counts that cannot be.
absl::StatusOr<Placement> BuildServicePlacement(const ModelConfig& config, int64_t num_experts,
                                                int64_t replicas);

}  // namespace moebius
