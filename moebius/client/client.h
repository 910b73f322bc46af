// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/api/bias.h"
#include "moebius/api/generate.h"
#include "moebius/api/placement_table.h"
#include "moebius/api/route.h"
#include "moebius/api/router_info.h"

namespace moebius {

struct ClientTls {
  std::string ca_file;    // PEM: who may sign the router's certificate
  std::string cert_file;  // PEM: the caller's own; with key_file, or both empty
  std::string key_file;
  std::string server_name;  // the name in the router's certificate; empty: the target's
};

struct ClientOptions {
  std::string target;            // "HOST:PORT"
  std::optional<ClientTls> tls;  // without: plain text
  std::string api_key;           // sent with every call of the router's API; empty: none
  /// Of every call but Generate, whose deadline is the request's.
  absl::Duration timeout = absl::Seconds(30);
  absl::Duration connect_timeout = absl::Seconds(5);
};

/// The calls of a person or program on a router (proto/moebius/api/router/v1/router.proto has what
/// each does and how it fails). Failures are those of the router, with their hint and detail; what
/// never reached it is UNAVAILABLE naming the target, and may be tried again.
///
/// Thread-safe. Nothing is retried behind the caller's back.
class Client {
 public:
  /// Connects when first used. INVALID_ARGUMENT or NOT_FOUND for TLS files that cannot be read, and
  /// INVALID_ARGUMENT for an API key that no header takes.
  static absl::StatusOr<std::unique_ptr<Client>> Make(const ClientOptions& options);
  ~Client();

  /// Waits until the router can be reached, at most the connect timeout.
  absl::Status Connect();

  /// Returns when the answer has ended; `on_event` is called on this thread, in order, for each
  /// event, and with null about every `kPollInterval` in between. It returns false to end the
  /// request: what came stays valid, and OK is returned.
  absl::Status Generate(const GenerateRequest& request,
                        absl::FunctionRef<bool(const GenerateEvent* event)> on_event);
  static constexpr absl::Duration kPollInterval = absl::Milliseconds(50);

  absl::StatusOr<ForwardAnswer> Forward(ForwardRequest request);
  absl::StatusOr<RouteAnswer> Route(const RouteRequest& request);
  absl::StatusOr<ModelInfo> GetModelInfo();
  absl::StatusOr<ServerInfo> GetServerInfo();
  absl::StatusOr<ExpertLoadTable> GetExpertLoad();
  absl::StatusOr<BiasTable> GetBias();
  absl::StatusOr<PlacementTable> GetPlacement();
  /// On the router's admin port alone; gives the version then in force.
  absl::StatusOr<uint64_t> UpdateBias(const BiasUpdate& update);
  absl::StatusOr<Explanation> Explain(const std::string& request_id);
  /// Whether grpc.health.v1 says SERVING; NOT_FOUND for a name that the service does not know.
  absl::StatusOr<bool> IsServing(const std::string& name = "");

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
