// SPDX-License-Identifier: Apache-2.0
#include "tests/rpc/router_world.h"

#include <optional>

#include "moebius/base/check.h"

namespace moebius {
namespace {

RouterRpcOptions WithLimit(RouterRpcOptions options, uint64_t max_message_bytes) {
  options.server.max_message_bytes = max_message_bytes;
  return options;
}

}  // namespace

RouterWorld::RouterWorld(RouterFront& front, const RouterRpcOptions& options,
                         uint64_t max_message_bytes)
    : rpc_(front, WithLimit(options, max_message_bytes)),
      health_([&front](const std::string& name) {
        return name.empty() ? std::optional<bool>(front.readiness().ready) : std::nullopt;
      }) {
  RpcServerOptions server;
  server.listen = {"127.0.0.1", 0};
  server.max_message_bytes = max_message_bytes;
  server.meter = &calls_;
  auto started = RpcServer::Start(server, health_, {&rpc_});
  MOEBIUS_CHECK(started.ok());
  server_ = *std::move(started);
  ClientOptions client;
  client.target = target();
  client_ = *Client::Make(client);
  MOEBIUS_CHECK(client_->Connect().ok());
}

}  // namespace moebius
