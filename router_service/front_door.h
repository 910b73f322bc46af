// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "router_service/front.h"

namespace moebius {

/// A router's front from its first moment on. Until there is somebody behind it, it says who it is
/// and what is missing, and refuses work with UNAVAILABLE; so it does again at the end of its life.
/// Thread-safe.
class FrontDoor final : public RouterFront {
 public:
  /// `info` gives what is known before the door opens: topology, services, what is missing. It
  /// never waits.
  FrontDoor(ModelInfo model, std::function<ServerInfo()> info)
      : model_(std::move(model)), info_(std::move(info)) {}

  /// From now on `front` answers; it outlives the last call.
  void Open(RouterFront* front) { front_.store(front, std::memory_order_release); }
  /// From now on it is not ready, for good.
  void SetDraining() { is_draining_.store(true, std::memory_order_release); }
  /// From now on work is refused, for good. What was taken goes on, and questions are answered.
  void Close() { is_closed_.store(true, std::memory_order_release); }

  absl::StatusOr<std::shared_ptr<GenerateStream>> Submit(const GenerateRequest& request) override;
  void NoteRefused(const absl::Status& reason) override;
  absl::StatusOr<ForwardAnswer> Forward(const ForwardRequest& request,
                                        absl::Duration timeout) override;
  absl::StatusOr<RouteAnswer> Route(const RouteRequest& request, absl::Duration timeout) override;
  ModelInfo model_info() const override { return model_; }
  ServerInfo server_info() const override;
  ExpertLoadTable expert_load() const override;
  BiasTable biases() const override;
  PlacementTable placement() const override;
  absl::StatusOr<uint64_t> UpdateBias(const BiasUpdate& update) override;
  Readiness readiness() const override;
  absl::StatusOr<Explanation> Explain(const std::string& request_id,
                                      const std::optional<std::string>& asker) const override;

 private:
  RouterFront* front() const { return front_.load(std::memory_order_acquire); }
  absl::Status CheckOpen() const;
  bool IsDraining() const;

  const ModelInfo model_;
  const std::function<ServerInfo()> info_;
  std::atomic<RouterFront*> front_{nullptr};
  std::atomic<bool> is_draining_{false};
  std::atomic<bool> is_closed_{false};
};

}  // namespace moebius
