// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "moebius/rpc/health_rpc.h"
#include "moebius/rpc/rpc_server.h"
#include "moebius/rpc/worker_pool.h"
#include "proto/moebius/api/router/v1/router.grpc.pb.h"
#include "router_service/client_gate.h"
#include "router_service/front.h"
#include "router_service/rpc/generate_rpc.h"

namespace moebius {

/// How many calls a router answers at a time, and with how many threads beside gRPC's.
struct RouterRpcOptions {
  int64_t max_generate_calls = 1280;  // running and queued requests of the lead's defaults
  int generate_threads = 1;           // they convert chunks: some microseconds each
  int blocking_threads = 4;           // each waits for one Forward or Route
  int64_t max_blocking_calls = 64;    // that wait for such a thread
  absl::Duration max_blocking_time = absl::Seconds(30);
  absl::Duration max_write_wait = absl::Seconds(60);  // of one chunk for its reader
  RpcServerOptions server;            // of the port, for what GetServerInfo tells of its bounds
  ClientGate* gate = nullptr;         // who may call; outlives the service; null: anybody
  std::vector<std::string> warnings;  // for GetServerInfo
};

/// The service Router over a front. With a gate every method wants a key, and those that compute
/// are counted among their client's calls. Thread-safe; outlives the server that it is registered
/// with.
class RouterRpc final : public moebius::api::router::v1::Router::CallbackService {
 public:
  /// Borrows `front`.
  RouterRpc(RouterFront& front, const RouterRpcOptions& options);
  ~RouterRpc() override;

  grpc::ServerWriteReactor<moebius::api::router::v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context,
      const moebius::api::router::v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* Forward(grpc::CallbackServerContext* context,
                                    const moebius::api::router::v1::ForwardRequest* request,
                                    moebius::api::router::v1::ForwardResponse* response) override;
  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context,
                                  const moebius::api::router::v1::RouteRequest* request,
                                  moebius::api::router::v1::RouteResponse* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(
      grpc::CallbackServerContext* context,
      const moebius::api::router::v1::GetModelInfoRequest* request,
      moebius::api::router::v1::GetModelInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* context,
      const moebius::api::router::v1::GetServerInfoRequest* request,
      moebius::api::router::v1::GetServerInfoResponse* response) override;
  grpc::ServerUnaryReactor* GetExpertLoad(
      grpc::CallbackServerContext* context,
      const moebius::api::router::v1::GetExpertLoadRequest* request,
      moebius::api::router::v1::GetExpertLoadResponse* response) override;
  grpc::ServerUnaryReactor* GetBias(grpc::CallbackServerContext* context,
                                    const moebius::api::router::v1::GetBiasRequest* request,
                                    moebius::api::router::v1::GetBiasResponse* response) override;
  grpc::ServerUnaryReactor* GetPlacement(
      grpc::CallbackServerContext* context,
      const moebius::api::router::v1::GetPlacementRequest* request,
      moebius::api::router::v1::GetPlacementResponse* response) override;
  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const moebius::api::router::v1::ExplainRequest* request,
                                    moebius::api::router::v1::ExplainResponse* response) override;

 private:
  absl::Status CheckCaller(const grpc::CallbackServerContext& context) const;
  // The place of a call that computes; null without a gate.
  absl::StatusOr<std::shared_ptr<ClientPass>> EnterCaller(
      const grpc::CallbackServerContext& context) const;

  RouterFront& front_;
  const RouterRpcOptions options_;
  GenerateCalls generate_calls_;  // before the pool, whose last tasks end calls
  WorkerPool generate_pool_;
  WorkerPool blocking_pool_;
  CallWatch watch_;  // goes first: it gives the pool work
};

/// The service RouterAdmin over a front, for the admin port alone. Thread-safe; outlives the server
/// that it is registered with.
class RouterAdminRpc final : public moebius::api::router::v1::RouterAdmin::CallbackService {
 public:
  /// Borrows `front`.
  explicit RouterAdminRpc(RouterFront& front);

  grpc::ServerUnaryReactor* UpdateBias(
      grpc::CallbackServerContext* context,
      const moebius::api::router::v1::UpdateBiasRequest* request,
      moebius::api::router::v1::UpdateBiasResponse* response) override;

 private:
  RouterFront& front_;
  WorkerPool pool_;
};

/// Its methods, for who counts calls.
const google::protobuf::ServiceDescriptor& RouterApi();

/// Bytes of the largest request that a router must take: the longest prompt, or a full Forward.
uint64_t MaxRouterRequestBytes(const ModelInfo& model, int64_t max_forward_rows);

}  // namespace moebius
