// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/model/checkpoint.h"
#include "moebius/placement/placement.h"
#include "router_service/bias_control.h"
#include "router_service/expert_load.h"
#include "router_service/front.h"
#include "router_service/lead.h"
#include "router_service/lead_options.h"
#include "router_service/request_log.h"
#include "router_service/request_trace.h"
#include "router_service/row_pipeline.h"

namespace moebius {

/// The services behind a router at one moment.
struct RosterFacts {
  std::vector<ServiceState> services;
  std::vector<std::string> missing;  // in words; empty: ready
  uint64_t epoch = 0;
};

/// What Checkpoint says to clients; its name for people is the last part of `model_path`.
ModelInfo DescribeModel(const Checkpoint& checkpoint, absl::string_view model_path,
                        const SamplingParams& default_sampling, absl::string_view tokenizer);

/// The bounds of a lead on what callers may ask, each with the status code beyond it.
std::vector<Limit> DescribeLimits(const LeadOptions& options, const KvPool& pool);

/// A router's front over the lead and the row pipeline of the same process.
class LeadFront final : public RouterFront {
 public:
  struct Parts {
    Lead* lead = nullptr;
    RowPipeline* rows = nullptr;
    Executor* executor = nullptr;
    const Checkpoint* checkpoint = nullptr;
    const RouterWeights* weights = nullptr;
    const Placement* placement = nullptr;
    const ExpertLoad* load = nullptr;
    const RequestLog* log = nullptr;
    BiasControl* biases = nullptr;
    std::string bias_file;                // where they are kept; empty: nowhere
    std::function<RosterFacts()> roster;  // never waits
    TraceRule tracing;                    // of Forward; the lead has its own
  };
  /// What does not change while the router lives.
  struct Facts {
    LeadOptions options;
    ModelInfo model;
    std::string version;
    std::string topology;  // "embedded", "split", "co-located"
    std::string tier;
    int64_t max_route_tokens = 2048;
  };

  /// Borrows all parts. The lead has `parts.log` as its log and the pipeline `parts.load`.
  LeadFront(Parts parts, Facts facts, const Clock& clock = Clock::Monotonic());

  absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(const GenerateRequest& request) override;
  void NoteRefused(const absl::Status& reason) override { parts_.lead->NoteRefused(reason); }
  absl::StatusOr<ForwardAnswer> Forward(const ForwardRequest& request,
                                        absl::Duration timeout) override;
  absl::StatusOr<RouteAnswer> Route(const RouteRequest& request, absl::Duration timeout) override;
  ModelInfo model_info() const override { return facts_.model; }
  ServerInfo server_info() const override;
  ExpertLoadTable expert_load() const override { return parts_.load->Read(); }
  BiasTable biases() const override;
  PlacementTable placement() const override;
  absl::StatusOr<uint64_t> UpdateBias(const BiasUpdate& update) override;
  Readiness readiness() const override;
  absl::StatusOr<Explanation> Explain(const std::string& request_id,
                                      const std::optional<std::string>& asker) const override {
    return parts_.log->Explain(request_id, asker);
  }

 private:
  absl::Status CheckSubmission(const GenerateRequest& request) const;
  absl::Status CheckConfigHash(const std::string& config_hash) const;
  absl::Status CheckForward(const ForwardRequest& request) const;
  absl::Status CheckReady() const;
  // `trace` may be null.
  absl::StatusOr<ForwardAnswer> ForwardTraced(const ForwardRequest& request, absl::Duration timeout,
                                              RequestTrace* trace);

  const Parts parts_;
  const Facts facts_;
  const Clock& clock_;
  const absl::Duration started_at_;
};

}  // namespace moebius
