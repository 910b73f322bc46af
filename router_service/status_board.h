// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "absl/time/time.h"

#include "moebius/telemetry/http/http_server.h"
#include "router_service/expert_load.h"
#include "router_service/front.h"
#include "router_service/lead_meter.h"
#include "router_service/load_history.h"

namespace moebius {

/// The status page of a router and the history that it shows. Thread-safe.
class StatusBoard {
 public:
  struct Parts {
    std::string name;                    // of the router
    const RouterFront* front = nullptr;  // borrowed, as `load`
    const ExpertLoad* load = nullptr;
    std::function<LeadCounters()> counters;  // never waits
  };
  explicit StatusBoard(Parts parts) : parts_(std::move(parts)) {}

  /// "/" and "/status". The board outlives the server.
  void AddTo(HttpServer& http);
  /// Call it a few times a second: keeps a sample when one is due.
  void KeepHistory(absl::Duration now);

 private:
  HttpResponse Answer(const HttpRequest& request) const;

  const Parts parts_;
  LoadHistory history_;
};

}  // namespace moebius
