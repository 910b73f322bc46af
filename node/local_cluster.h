// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/attention/attention_method.h"
#include "moebius/routing/capacity.h"
#include "moebius/transport/link.h"
#include "router_service/generate_stream.h"
#include "router_service/lead.h"
#include "router_service/roster.h"

namespace moebius {

struct LocalClusterOptions {
  std::string model_path;
  int32_t num_experts = 1;                          // expert services
  int32_t num_attention = 1;                        // attention ranks of each router
  int32_t num_routers = 1;                          // all with the same expert services
  std::optional<AttentionMethod> attention_method;  // nothing: the cost model's choice
  int64_t num_replicas = 0;    // of each routed expert; 0: two where there are two services
  std::string placement_file;  // instead of num_replicas; empty: none
  int num_threads = 1;         // of each of them, and of the router
  int64_t row_budget = 512;
  int64_t chunk_rows = 0;                       // 0: the row budget
  CapacityPolicy capacity;                      // dropless
  int64_t kv_budget_bytes = int64_t{64} << 20;  // of each rank
  absl::Duration start_limit = absl::Seconds(60);
  /// Links of the process with this name ("router", "expert-2", "attention-0"; of further routers
  /// "router-1", "router-1-attention-0"); they outlive the cluster. Null: loopback links of the
  /// cluster's own.
  std::function<LinkProvider*(const std::string& name)> provider;
};

/// A whole cluster in one process: routers, expert services and attention ranks, each with a
/// transport, a reactor and an executor of its own, that share nothing but the checkpoint's file.
/// Everything that they tell each other goes through links. What names no router is of the first.
///
/// Thread-safe, save that killing and restarting belong to one thread.
class LocalCluster {
 public:
  /// Returns when all have joined and loaded and a canary token went round. DEADLINE_EXCEEDED after
  /// start_limit, saying what is missing.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Make(const LocalClusterOptions& options);
  ~LocalCluster();

  /// As EmbeddedNode has them.
  absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(const GenerateRequest& request);
  /// `router` lives.
  absl::StatusOr<std::shared_ptr<GenerateStream>> SubmitTo(int32_t router,
                                                           const GenerateRequest& request);
  absl::Status Generate(const GenerateRequest& request,
                        absl::FunctionRef<bool(const GenerateEvent&)> on_event);

  /// Ends a process without a word to the others but the end of its streams, or starts it again
  /// under its name. Killing the dead and starting the living do nothing.
  void KillExpert(int32_t service);
  void KillAttention(int32_t rank);
  absl::Status RestartExpert(int32_t service);
  absl::Status RestartAttention(int32_t rank);
  /// With its attention ranks. A restarted one listens where it did, and is ready when this
  /// returns.
  void KillRouter(int32_t router);
  absl::Status RestartRouter(int32_t router);

  const Roster& roster() const;
  LeadCounters counters() const;

 private:
  class Impl;
  explicit LocalCluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
