// SPDX-License-Identifier: Apache-2.0
#include "router_service/rpc/router_rpc.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "moebius/base/status.h"
#include "moebius/rpc/rpc_server.h"
#include "moebius/rpc/unary_call.h"
#include "moebius/wire/api/router_codec.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::router::v1;

constexpr size_t kMaxWaitingUpdates = 16;

// What a call that is begun costs its client; nobody where there is no gate.
void Charge(const std::shared_ptr<ClientPass>& pass, int64_t tokens) {
  if (pass != nullptr) pass->Charge(tokens);
}

}  // namespace

RouterRpc::RouterRpc(RouterFront& front, const RouterRpcOptions& options)
    : front_(front),
      options_(options),
      generate_calls_{front, generate_pool_, options.max_generate_calls, options.gate, &watch_},
      generate_pool_(options.generate_threads, static_cast<size_t>(options.max_generate_calls)),
      blocking_pool_(options.blocking_threads, static_cast<size_t>(options.max_blocking_calls)),
      watch_(options.max_write_wait) {}

RouterRpc::~RouterRpc() = default;

grpc::ServerWriteReactor<pb::GenerateResponse>* RouterRpc::Generate(
    grpc::CallbackServerContext* context, const pb::GenerateRequest* request) {
  return GenerateCall::Start(generate_calls_, context, request);
}

grpc::ServerUnaryReactor* RouterRpc::Forward(grpc::CallbackServerContext* context,
                                             const pb::ForwardRequest* request,
                                             pb::ForwardResponse* response) {
  const auto pass = EnterCaller(*context);
  if (!pass.ok()) return AnswerNow(context, pass.status());
  // The pass is the caller's place for as long as the work is there, waiting or running.
  return RunOnPool(context, blocking_pool_,
                   [this, context, request, response, pass = *pass]() -> absl::Status {
                     MOEBIUS_ASSIGN_OR_RETURN(ForwardRequest forward, FromProto(*request));
                     // Not before: a request may claim any number of rows.
                     Charge(pass, request->num_rows());
                     forward.traceparent = TraceparentOf(*context);
                     MOEBIUS_ASSIGN_OR_RETURN(
                         ForwardAnswer answer,
                         front_.Forward(forward, TimeLeft(*context, options_.max_blocking_time)));
                     ToProto(std::move(answer), response);
                     return absl::OkStatus();
                   });
}

grpc::ServerUnaryReactor* RouterRpc::Route(grpc::CallbackServerContext* context,
                                           const pb::RouteRequest* request,
                                           pb::RouteResponse* response) {
  const auto pass = EnterCaller(*context);
  if (!pass.ok()) return AnswerNow(context, pass.status());
  return RunOnPool(
      context, blocking_pool_, [this, context, request, response, pass = *pass]() -> absl::Status {
        Charge(pass, request->token_ids_size());
        MOEBIUS_ASSIGN_OR_RETURN(
            const RouteAnswer answer,
            front_.Route(FromProto(*request), TimeLeft(*context, options_.max_blocking_time)));
        ToProto(answer, response);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* RouterRpc::GetModelInfo(grpc::CallbackServerContext* context,
                                                  const pb::GetModelInfoRequest*,
                                                  pb::GetModelInfoResponse* response) {
  const absl::Status caller = CheckCaller(*context);
  if (caller.ok()) ToProto(front_.model_info(), response);
  return AnswerNow(context, caller);
}

grpc::ServerUnaryReactor* RouterRpc::GetServerInfo(grpc::CallbackServerContext* context,
                                                   const pb::GetServerInfoRequest*,
                                                   pb::GetServerInfoResponse* response) {
  if (const absl::Status caller = CheckCaller(*context); !caller.ok()) {
    return AnswerNow(context, caller);
  }
  ServerInfo info = front_.server_info();
  info.warnings = options_.warnings;
  info.limits.push_back({"max_generate_calls", options_.max_generate_calls, "RESOURCE_EXHAUSTED",
                         "Generate calls at a time"});
  info.limits.push_back({"max_blocking_calls", options_.max_blocking_calls, "RESOURCE_EXHAUSTED",
                         "Forward and Route calls that wait"});
  info.limits.push_back({"max_blocking_seconds", absl::ToInt64Seconds(options_.max_blocking_time),
                         "DEADLINE_EXCEEDED", "seconds of a Forward or Route"});
  info.limits.push_back({"max_request_bytes",
                         static_cast<int64_t>(options_.server.max_message_bytes),
                         "RESOURCE_EXHAUSTED", "bytes of one request message"});
  info.limits.push_back({"max_metadata_bytes", kMaxRpcMetadataBytes, "RESOURCE_EXHAUSTED",
                         "bytes of a call's metadata"});
  info.limits.push_back({"max_connections", options_.server.max_connections, "",
                         "connections of the port; others are closed"});
  info.limits.push_back({"max_connections_per_address", options_.server.max_connections_per_address,
                         "", "of these, from one address"});
  ToProto(info, response);
  return AnswerNow(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* RouterRpc::GetExpertLoad(grpc::CallbackServerContext* context,
                                                   const pb::GetExpertLoadRequest*,
                                                   pb::GetExpertLoadResponse* response) {
  if (const absl::Status caller = CheckCaller(*context); !caller.ok()) {
    return AnswerNow(context, caller);
  }
  // Up to 15,000 numbers, but nothing to wait for: still not on gRPC's thread.
  return RunOnPool(context, blocking_pool_, [this, response]() -> absl::Status {
    ToProto(front_.expert_load(), response);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RouterRpc::GetBias(grpc::CallbackServerContext* context,
                                             const pb::GetBiasRequest*,
                                             pb::GetBiasResponse* response) {
  if (const absl::Status caller = CheckCaller(*context); !caller.ok()) {
    return AnswerNow(context, caller);
  }
  return RunOnPool(context, blocking_pool_, [this, response]() -> absl::Status {
    ToProto(front_.biases(), response);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RouterRpc::GetPlacement(grpc::CallbackServerContext* context,
                                                  const pb::GetPlacementRequest*,
                                                  pb::GetPlacementResponse* response) {
  if (const absl::Status caller = CheckCaller(*context); !caller.ok()) {
    return AnswerNow(context, caller);
  }
  return RunOnPool(context, blocking_pool_, [this, response]() -> absl::Status {
    ToProto(front_.placement(), response);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* RouterRpc::Explain(grpc::CallbackServerContext* context,
                                             const pb::ExplainRequest* request,
                                             pb::ExplainResponse* response) {
  std::optional<std::string> asker;  // nobody in particular where there is no gate
  if (options_.gate != nullptr) {
    absl::StatusOr<std::string> client =
        options_.gate->Identify(AuthorizationOf(*context), context->peer());
    if (!client.ok()) return AnswerNow(context, client.status());
    asker = *std::move(client);
  }
  const absl::StatusOr<Explanation> explanation = front_.Explain(request->request_id(), asker);
  if (explanation.ok()) ToProto(*explanation, response);
  return AnswerNow(context, explanation.status());
}

absl::Status RouterRpc::CheckCaller(const grpc::CallbackServerContext& context) const {
  return options_.gate == nullptr ? absl::OkStatus()
                                  : options_.gate->Check(AuthorizationOf(context), context.peer());
}

absl::StatusOr<std::shared_ptr<ClientPass>> RouterRpc::EnterCaller(
    const grpc::CallbackServerContext& context) const {
  if (options_.gate == nullptr) return std::shared_ptr<ClientPass>();
  return options_.gate->Enter(AuthorizationOf(context), context.peer());
}

RouterAdminRpc::RouterAdminRpc(RouterFront& front)
    : front_(front), pool_(/*num_threads=*/1, kMaxWaitingUpdates) {}

grpc::ServerUnaryReactor* RouterAdminRpc::UpdateBias(grpc::CallbackServerContext* context,
                                                     const pb::UpdateBiasRequest* request,
                                                     pb::UpdateBiasResponse* response) {
  return RunOnPool(context, pool_, [this, request, response]() -> absl::Status {
    MOEBIUS_ASSIGN_OR_RETURN(const uint64_t version, front_.UpdateBias(FromProto(*request)));
    response->set_version(version);
    return absl::OkStatus();
  });
}

const google::protobuf::ServiceDescriptor& RouterApi() {
  return *pb::GenerateRequest::descriptor()->file()->FindServiceByName("Router");
}

uint64_t MaxRouterRequestBytes(const ModelInfo& model, int64_t max_forward_rows) {
  constexpr uint64_t kOtherFields = uint64_t{1} << 20;
  constexpr uint64_t kTokenBytes = 5;  // of an id below 2^35 as protobuf writes it
  const uint64_t prompt = static_cast<uint64_t>(model.max_positions) * kTokenBytes;
  const uint64_t rows = static_cast<uint64_t>(max_forward_rows * model.hidden_size) * 2;
  return std::min(kMaxRpcMessageBytes, std::max(prompt, rows) + kOtherFields);
}

}  // namespace moebius
