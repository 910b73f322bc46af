// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/api/bias.h"
#include "moebius/api/generate.h"
#include "moebius/api/placement_table.h"
#include "moebius/api/route.h"
#include "moebius/api/router_info.h"
#include "router_service/generate_stream.h"

namespace moebius {

/// Whether a router takes requests, and what keeps it from that, in words.
struct Readiness {
  bool ready = false;
  std::vector<std::string> missing;  // empty when ready
};

/// What a router offers, whoever asks: RPCs, the command line, tests. Thread-safe.
class RouterFront {
 public:
  virtual ~RouterFront() = default;

  /// Checks and queues a request (Lead::Submit has the refusals). ALREADY_EXISTS also for an id
  /// that has ended a short while ago; FAILED_PRECONDITION for another config_hash; UNAVAILABLE,
  /// naming what is missing, while not ready.
  virtual absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(
      const GenerateRequest& request) = 0;

  /// Counts a Generate that was refused before it came to Submit.
  virtual void NoteRefused(const absl::Status&) {}

  /// Takes rows through the experts of one MoE layer. Waits for the moment between two steps, at
  /// most `timeout` (DEADLINE_EXCEEDED). Counts as load. INVALID_ARGUMENT: a layer without experts,
  /// another hidden_size, a row that is not finite. RESOURCE_EXHAUSTED: too many rows.
  virtual absl::StatusOr<ForwardAnswer> Forward(const ForwardRequest& request,
                                                absl::Duration timeout) = 0;

  /// Dry run: answers nobody and counts nowhere. Waits like Forward.
  virtual absl::StatusOr<RouteAnswer> Route(const RouteRequest& request,
                                            absl::Duration timeout) = 0;

  // Never wait.
  virtual ModelInfo model_info() const = 0;
  virtual ServerInfo server_info() const = 0;
  virtual ExpertLoadTable expert_load() const = 0;
  virtual Readiness readiness() const = 0;
  virtual BiasTable biases() const = 0;
  virtual PlacementTable placement() const = 0;
  /// NOT_FOUND: never seen, forgotten since, or of another caller than `asker` (as GenerateRequest
  /// has it), in the same words. Nothing for `asker`: an operator, who sees all.
  virtual absl::StatusOr<Explanation> Explain(const std::string& request_id,
                                              const std::optional<std::string>& asker) const = 0;

  /// For operators and training loops. BiasControl::Update has the refusals; UNAVAILABLE while not
  /// ready.
  virtual absl::StatusOr<uint64_t> UpdateBias(const BiasUpdate& update) = 0;
};

}  // namespace moebius
