// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "moebius/api/route.h"
#include "moebius/base/strong_id.h"
#include "moebius/model/model_config.h"
#include "moebius/placement/placement.h"
#include "moebius/routing/assignments.h"
#include "moebius/routing/capacity.h"
#include "moebius/tensor/buffer.h"
#include "router_service/ports.h"

namespace moebius {

/// What the gate of one layer said of a prompt, step by step. Observes a dry run.
class GateRecord final : public StepObserver {
 public:
  explicit GateRecord(LayerId layer) : layer_(layer) {}

  void OnGate(LayerId layer, FloatRows logits, const Assignments& assignments) override;

  /// All rows so far.
  const Assignments& assignments() const { return assignments_; }
  /// [rows so far, E], before the score function.
  absl::Span<const float> logits() const { return logits_; }

 private:
  const LayerId layer_;
  Assignments assignments_;
  std::vector<float> logits_;
};

/// The layer that a Route or Forward is about. INVALID_ARGUMENT, listing those with experts, for a
/// layer without.
absl::Status CheckMoeLayer(const ModelConfig& config, int32_t layer);

/// `num_services` expert services, each with an equal range of the experts and no replica; shared
/// and dense slices on all of them.
absl::StatusOr<Placement> MakeRoutePlacement(const ModelConfig& config, int32_t num_services);

/// What decides who computes the rows of the layer in question.
struct RouteRule {
  const ModelConfig* config = nullptr;
  const NumericsConfig* numerics = nullptr;
  absl::Span<const float> bias;  // [E], empty without a correction bias
  CapacityPolicy capacity;       // dropless
};

/// The layer's dispatch under a placement, for one step that holds the whole prompt: what the gate
/// chose, and what a capacity would leave of it. Pure. Float environment of the executor.
absl::StatusOr<RouteAnswer> BuildRouteAnswer(const RouteRule& rule, const Placement& placement,
                                             const RouteRequest& request, const GateRecord& gate);

}  // namespace moebius
