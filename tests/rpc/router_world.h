// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "moebius/client/client.h"
#include "moebius/rpc/call_meter.h"
#include "moebius/rpc/health_rpc.h"
#include "moebius/rpc/rpc_server.h"
#include "router_service/front.h"
#include "router_service/rpc/router_rpc.h"

namespace moebius {

/// A front behind a real gRPC port of this host, and a client of it.
class RouterWorld {
 public:
  /// Borrows `front`.
  explicit RouterWorld(RouterFront& front, const RouterRpcOptions& options = RouterRpcOptions(),
                       uint64_t max_message_bytes = uint64_t{4} << 20);

  Client& client() { return *client_; }
  std::string target() const { return FormatAddress(server_->address()); }
  RpcServer& server() { return *server_; }
  const CallMeter& calls() const { return calls_; }

 private:
  CallMeter calls_{"router", RouterApi()};
  RouterRpc rpc_;
  HealthRpc health_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Client> client_;
};

}  // namespace moebius
