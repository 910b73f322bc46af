// SPDX-License-Identifier: Apache-2.0
#include "moebius/client/client.h"

#include <grpcpp/channel.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "moebius/base/status.h"
#include "moebius/client/channel.h"
#include "moebius/client/generate_reader.h"
#include "moebius/wire/api/router_codec.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"
#include "proto/moebius/api/router/v1/router.grpc.pb.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::router::v1;

// A router ends a request at its deadline and says how far it came: the call waits for its word.
constexpr absl::Duration kDeadlineGrace = absl::Seconds(1);

}  // namespace

class Client::Impl {
 public:
  Impl(ClientOptions options, std::shared_ptr<grpc::Channel> channel)
      : options_(std::move(options)),
        channel_(std::move(channel)),
        router_(pb::Router::NewStub(channel_)),
        admin_(pb::RouterAdmin::NewStub(channel_)),
        health_(grpc::health::v1::Health::NewStub(channel_)) {}

  absl::Status Connect() {
    if (channel_->WaitForConnected(absl::ToChronoTime(absl::Now() + options_.connect_timeout))) {
      return absl::OkStatus();
    }
    return Unreachable(whom_, absl::StrCat("no connection within ",
                                           absl::FormatDuration(options_.connect_timeout)));
  }

  absl::Status Generate(const GenerateRequest& request,
                        absl::FunctionRef<bool(const GenerateEvent*)> on_event) {
    pb::GenerateRequest message;
    ToProto(request, &message);
    grpc::ClientContext context;
    SetApiKey(&context, options_.api_key);
    SetTraceparent(&context, request.traceparent);
    if (request.deadline.has_value()) SetDeadline(&context, *request.deadline + kDeadlineGrace);
    GenerateReader reader(*router_, context, message);
    bool goes_on = true;
    CallProgress progress = CallProgress::kNothingHeard;
    absl::Status broken;
    pb::GenerateResponse chunk;
    while (true) {
      const GenerateReader::News news = reader.Next(kPollInterval, &chunk);
      if (news == GenerateReader::News::kEnd) break;
      if (news == GenerateReader::News::kNothingYet) {
        goes_on = goes_on && on_event(nullptr);
      } else if (goes_on) {
        progress = CallProgress::kAnswerBegun;
        const absl::StatusOr<GenerateEvent> event = FromProto(chunk);
        if (!event.ok()) broken = event.status();
        goes_on = event.ok() && on_event(&*event);
      }
      if (!goes_on) context.TryCancel();
    }
    if (!broken.ok()) return broken;
    return goes_on ? CallStatus(whom_, reader.status(), progress) : absl::OkStatus();
  }

  /// One unary call of a stub.
  template <typename Stub, typename Request, typename Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    Stub& stub, const Request& request, Response* response) {
    grpc::ClientContext context;
    SetApiKey(&context, options_.api_key);
    SetDeadline(&context, options_.timeout);
    return CallStatus(whom_, (stub.*method)(&context, request, response));
  }

  pb::Router::Stub& router() { return *router_; }
  pb::RouterAdmin::Stub& admin() { return *admin_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }

 private:
  const ClientOptions options_;
  const std::string whom_ = absl::StrCat("a router at ", options_.target);
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<pb::Router::Stub> router_;
  const std::unique_ptr<pb::RouterAdmin::Stub> admin_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Make(const ClientOptions& options) {
  MOEBIUS_RETURN_IF_ERROR(ValidateApiKey(options.api_key));
  MOEBIUS_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(options));
  return std::unique_ptr<Client>(new Client(std::make_unique<Impl>(options, std::move(channel))));
}

absl::Status Client::Connect() { return impl_->Connect(); }

absl::Status Client::Generate(const GenerateRequest& request,
                              absl::FunctionRef<bool(const GenerateEvent*)> on_event) {
  return impl_->Generate(request, on_event);
}

absl::StatusOr<ForwardAnswer> Client::Forward(ForwardRequest request) {
  pb::ForwardRequest message;
  ToProto(std::move(request), &message);
  pb::ForwardResponse response;
  MOEBIUS_RETURN_IF_ERROR(
      impl_->Call(&pb::Router::Stub::Forward, impl_->router(), message, &response));
  return FromProto(std::move(response));
}

absl::StatusOr<RouteAnswer> Client::Route(const RouteRequest& request) {
  pb::RouteRequest message;
  ToProto(request, &message);
  pb::RouteResponse response;
  MOEBIUS_RETURN_IF_ERROR(
      impl_->Call(&pb::Router::Stub::Route, impl_->router(), message, &response));
  return FromProto(response);
}

absl::StatusOr<ModelInfo> Client::GetModelInfo() {
  pb::GetModelInfoResponse response;
  MOEBIUS_RETURN_IF_ERROR(impl_->Call(&pb::Router::Stub::GetModelInfo, impl_->router(),
                                      pb::GetModelInfoRequest(), &response));
  return FromProto(response);
}

absl::StatusOr<ServerInfo> Client::GetServerInfo() {
  pb::GetServerInfoResponse response;
  MOEBIUS_RETURN_IF_ERROR(impl_->Call(&pb::Router::Stub::GetServerInfo, impl_->router(),
                                      pb::GetServerInfoRequest(), &response));
  return FromProto(response);
}

absl::StatusOr<ExpertLoadTable> Client::GetExpertLoad() {
  pb::GetExpertLoadResponse response;
  MOEBIUS_RETURN_IF_ERROR(impl_->Call(&pb::Router::Stub::GetExpertLoad, impl_->router(),
                                      pb::GetExpertLoadRequest(), &response));
  return FromProto(response);
}

absl::StatusOr<BiasTable> Client::GetBias() {
  pb::GetBiasResponse response;
  MOEBIUS_RETURN_IF_ERROR(
      impl_->Call(&pb::Router::Stub::GetBias, impl_->router(), pb::GetBiasRequest(), &response));
  return FromProto(response);
}

absl::StatusOr<PlacementTable> Client::GetPlacement() {
  pb::GetPlacementResponse response;
  MOEBIUS_RETURN_IF_ERROR(impl_->Call(&pb::Router::Stub::GetPlacement, impl_->router(),
                                      pb::GetPlacementRequest(), &response));
  return FromProto(response);
}

absl::StatusOr<uint64_t> Client::UpdateBias(const BiasUpdate& update) {
  pb::UpdateBiasRequest request;
  ToProto(update, &request);
  pb::UpdateBiasResponse response;
  MOEBIUS_RETURN_IF_ERROR(
      impl_->Call(&pb::RouterAdmin::Stub::UpdateBias, impl_->admin(), request, &response));
  return response.version();
}

absl::StatusOr<Explanation> Client::Explain(const std::string& request_id) {
  pb::ExplainRequest request;
  request.set_request_id(request_id);
  pb::ExplainResponse response;
  MOEBIUS_RETURN_IF_ERROR(
      impl_->Call(&pb::Router::Stub::Explain, impl_->router(), request, &response));
  return FromProto(response);
}

absl::StatusOr<bool> Client::IsServing(const std::string& name) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(name);
  grpc::health::v1::HealthCheckResponse response;
  MOEBIUS_RETURN_IF_ERROR(
      impl_->Call(&grpc::health::v1::Health::Stub::Check, impl_->health(), request, &response));
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

}  // namespace moebius
