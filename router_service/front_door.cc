// SPDX-License-Identifier: Apache-2.0
#include "router_service/front_door.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr char kDraining[] = "draining: this router finishes what it has begun, and ends";

}  // namespace

bool FrontDoor::IsDraining() const {
  return is_draining_.load(std::memory_order_acquire) || is_closed_.load(std::memory_order_acquire);
}

absl::Status FrontDoor::CheckOpen() const {
  if (is_closed_.load(std::memory_order_acquire)) {
    return WithHint(absl::UnavailableError("this router drains: it takes no more requests"),
                    "ask another router, or this one when it has started again");
  }
  if (front() != nullptr) return absl::OkStatus();
  return WithHint(
      absl::UnavailableError(absl::StrCat("not ready: ", absl::StrJoin(info_().missing, "; "))),
      "wait for it with: moebius wait --router HOST:PORT");
}

absl::StatusOr<std::shared_ptr<GenerateStream>> FrontDoor::Submit(const GenerateRequest& request) {
  const absl::Status open = CheckOpen();
  if (!open.ok()) {
    NoteRefused(open);
    return open;
  }
  return front()->Submit(request);
}

// Before there is somebody behind the door, calls are counted by code alone.
void FrontDoor::NoteRefused(const absl::Status& reason) {
  if (RouterFront* const open = front()) open->NoteRefused(reason);
}

absl::StatusOr<ForwardAnswer> FrontDoor::Forward(const ForwardRequest& request,
                                                 absl::Duration timeout) {
  MOEBIUS_RETURN_IF_ERROR(CheckOpen());
  return front()->Forward(request, timeout);
}

absl::StatusOr<RouteAnswer> FrontDoor::Route(const RouteRequest& request, absl::Duration timeout) {
  MOEBIUS_RETURN_IF_ERROR(CheckOpen());
  return front()->Route(request, timeout);
}

ServerInfo FrontDoor::server_info() const {
  const RouterFront* const open = front();
  ServerInfo info = open != nullptr ? open->server_info() : info_();
  if (IsDraining()) {
    info.ready = false;
    info.missing.insert(info.missing.begin(), std::string(kDraining));
  }
  return info;
}

ExpertLoadTable FrontDoor::expert_load() const {
  if (const RouterFront* const open = front()) return open->expert_load();
  return {};
}

BiasTable FrontDoor::biases() const {
  if (const RouterFront* const open = front()) return open->biases();
  return {};
}

PlacementTable FrontDoor::placement() const {
  if (const RouterFront* const open = front()) return open->placement();
  return {};
}

absl::StatusOr<uint64_t> FrontDoor::UpdateBias(const BiasUpdate& update) {
  MOEBIUS_RETURN_IF_ERROR(CheckOpen());
  return front()->UpdateBias(update);
}

Readiness FrontDoor::readiness() const {
  if (IsDraining()) return {.ready = false, .missing = {kDraining}};
  if (const RouterFront* const open = front()) return open->readiness();
  return {.ready = false, .missing = info_().missing};
}

absl::StatusOr<Explanation> FrontDoor::Explain(const std::string& request_id,
                                               const std::optional<std::string>& asker) const {
  if (const RouterFront* const open = front()) return open->Explain(request_id, asker);
  return absl::NotFoundError(absl::StrCat("request_id '", request_id, "' was never seen"));
}

}  // namespace moebius
