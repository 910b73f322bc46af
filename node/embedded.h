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
#include "absl/types/span.h"

#include "moebius/api/generate.h"
#include "moebius/kernels/tier.h"
#include "moebius/model/model_config.h"
#include "moebius/model/packed_cache.h"
#include "moebius/model/tokenizer.h"
#include "moebius/model/weight_load.h"
#include "moebius/routing/capacity.h"
#include "moebius/telemetry/expert_load.h"
#include "moebius/telemetry/registry.h"
#include "node/forced_logits.h"
#include "router_service/bias_control.h"
#include "router_service/front.h"
#include "router_service/generate_stream.h"
#include "router_service/lead.h"
#include "router_service/request_trace.h"

namespace moebius {

/// How far loading has come, for a progress bar.
struct LoadProgress {
  int64_t loaded_bytes = 0;
  int64_t total_bytes = 0;
};

/// What an embedded node is told; zero or unset means the default named beside the field.
struct EmbeddedOptions {
  std::string model_path;                       // a Hugging Face folder
  std::string config_file;                      // read instead of the folder's config.json
  int num_threads = 0;                          // DefaultNumThreads()
  std::optional<Tier> tier;                     // the best of this host
  std::optional<int32_t> span;                  // moebius.json, else the default of NumericsConfig
  std::optional<GroupFill> group_fill;          // the same
  std::optional<std::string> attention_sum;     // "canonical", "per-degree"; the same
  std::optional<std::string> attention_layout;  // "zigzag", "contiguous", "striped"; the same
  bool convert_to_bf16 = false;     // accept F16 and F32 weights by rounding them (--dtype=bf16)
  int64_t row_budget = 512;         // rows of one step; a model's positions where it is not causal
  int64_t chunk_rows = 0;           // rows of one prompt in one step; 0: the row budget
  int64_t kv_budget_bytes = 0;      // a quarter of the memory that this process may use
  int num_expert_pipelines = 1;     // expert ids are cut into so many contiguous ranges
  CapacityPolicy capacity;          // of each expert in a step; dropless
  PackedCacheOptions packed_cache;  // of packed weights; none
  BiasControlOptions biases;        // off; kept nowhere
  TraceRule tracing;                // nobody's spans
  std::function<void(const LoadProgress&)> on_load;  // on the caller's thread of Open
};

/// Facts of an open node, for closing lines and doctor.
struct EmbeddedInfo {
  std::string tier;
  int num_threads = 0;
  std::string config_hash;  // 16 hexadecimal digits
  std::string model_hash;
  std::vector<std::string> settings_not_applied;  // GenerationDefaults::not_applied
  int64_t weight_bytes = 0;
  int64_t kv_budget_bytes = 0;
  int64_t kv_capacity_tokens = 0;
  WeightLoadFigures load;     // of attention and experts, one after the other
  int64_t max_positions = 0;  // the smaller of the model's and what the KV budget holds
};

/// A whole Moebius in one process: row pipeline, expert pipelines and attention pipeline wired by
/// direct calls on one executor, under a lead of its own. Same bits as any cluster of the model.
///
/// Thread-safe: any number of Generate calls run together in continuous batches. Two nodes in one
/// process share nothing. The destructor aborts what still runs.
class EmbeddedNode {
 public:
  /// Loads the model. The status says what is wrong with the folder, the config, a tensor or the
  /// memory budget, with a hint.
  static absl::StatusOr<std::unique_ptr<EmbeddedNode>> Open(const EmbeddedOptions& options);
  ~EmbeddedNode();

  const ModelConfig& config() const;
  /// Null where the model's folder has no tokenizer that this build can read.
  const Tokenizer* tokenizer() const;
  EmbeddedInfo info() const;
  LeadUsage usage() const;
  LeadCounters counters() const;

  /// What a router's scrape shows of its requests, steps and experts; from a collector.
  void WriteMetrics(ExpertDetail detail, MetricWriter& writer) const;

  /// All that a router offers, dry runs and load included. Lives as long as the node.
  RouterFront& front();

  /// Checks and queues a request (Lead::Submit has the refusals). The stream is read by one thread
  /// and must not be read after the node's end.
  absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(const GenerateRequest& request);

  /// Submits a request and returns when it has ended; `on_event` is called on this thread, in
  /// order, the last event has `finished`. It returns false to cancel: the request then ends with
  /// finish_reason abort. The status is not OK where the request was rejected or failed; tokens
  /// of earlier events stay valid.
  absl::Status Generate(const GenerateRequest& request,
                        absl::FunctionRef<bool(const GenerateEvent&)> on_event);

  /// The fast path's logits for given ids: one prompt, no sampling, chunks as configured. Waits
  /// for a moment when no step runs. `rows`: tokens whose logits are kept, ascending; empty keeps
  /// all.
  absl::StatusOr<ForcedLogits> TeacherForced(absl::Span<const int64_t> token_ids,
                                             absl::Span<const int64_t> rows = {});

 private:
  class Impl;
  explicit EmbeddedNode(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
