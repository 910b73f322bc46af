// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/participant_process.h"

#include <string>
#include <utility>

#include "moebius/base/clock.h"
#include "moebius/base/status.h"
#include "moebius/service/rpc_port.h"
#include "moebius/telemetry/process_metrics.h"
#include "moebius/transport/metrics.h"

namespace moebius {

ParticipantProcess::ParticipantProcess(Options options, ProcessNotices& notices,
                                       Participant& participant)
    : options_(std::move(options)),
      notices_(notices),
      joiner_(OptionsOfJoiner(), participant),
      health_(Clock::Monotonic()),
      health_rpc_(SourceOf(health_)) {}

ParticipantProcess::~ParticipantProcess() { Stop(); }

void ParticipantProcess::Stop() { joiner_.Stop(); }

JoinerOptions ParticipantProcess::OptionsOfJoiner() const {
  JoinerOptions joiner;
  joiner.own = options_.greeting;
  joiner.near = options_.near_configs;
  joiner.routers = options_.config.join;
  joiner.on_notice = [this](const std::string& notice) { notices_.Log(notice); };
  joiner.on_refused = [this](const absl::Status& status) { notices_.Fail(status); };
  return joiner;
}

RefusalNotice ParticipantProcess::NotingOfPeers() {
  return [this](const LogSource& source, const std::string& notice) {
    notices_.LogOf(source, notice);
  };
}

absl::Status ParticipantProcess::Start(absl::FunctionRef<void(Transport&)> bind) {
  MOEBIUS_RETURN_IF_ERROR(ServeHttp());
  MOEBIUS_RETURN_IF_ERROR(ServeAdmin());
  MOEBIUS_ASSIGN_OR_RETURN(provider_, MakeLinkProvider(options_.flags.transport, options_.config,
                                                       options_.limits, NotingOfPeers()));
  DataPlaneOptions plane;
  plane.name = options_.config.name;
  plane.greeting = options_.greeting;
  if (http_ != nullptr) plane.greeting.http_address = FormatAddress(http_->address());
  if (admin_ != nullptr) plane.greeting.admin_address = FormatAddress(admin_->address());
  plane.limits = options_.limits;
  plane.listen = options_.config.listen;
  plane.advertise = options_.config.advertise;
  MOEBIUS_ASSIGN_OR_RETURN(plane_, DataPlane::Make(std::move(plane), *provider_, joiner_));
  health_.WatchLoop("reactor", [pulse = plane_->pulse()] { return pulse->Look(); });
  bind(plane_->transport());
  ports_collector_ = registry_.AddCollector([this](MetricWriter& writer) {
    WriteTransportMetrics(plane_->transport(), provider_->name(), writer);
    provider_->WriteMetrics(writer);
    if (admin_ != nullptr) admin_->WriteMetrics(writer);
  });
  health_.SetStarted();
  return joiner_.Start(plane_->transport());
}

void ParticipantProcess::SetDraining() {
  is_draining_.store(true, std::memory_order_relaxed);
  health_.SetDraining();
}

std::string ParticipantProcess::StateName() const {
  if (is_draining_.load(std::memory_order_relaxed)) return "draining";
  switch (joiner_.state().phase) {
    case JoinState::Phase::kDialing:
    case JoinState::Phase::kWaiting:
      return "joining";
    case JoinState::Phase::kSpare:
      return "spare";
    case JoinState::Phase::kLoading:
      return "loading";
    case JoinState::Phase::kReady:
      return "usable";
    case JoinState::Phase::kFailed:
      return "failed";
  }
  return "unknown";
}

void ParticipantProcess::Describe(ParticipantDescription* description) const {
  const Greeting& own = options_.greeting;
  description->name = options_.config.name;
  description->state = StateName();
  description->version = own.version;
  description->config_hash = own.config_hash;
  description->model_hash = own.model_hash;
  description->numeric_class = own.numeric_class;
  description->tier = own.tier;
}

Endpoints ParticipantProcess::endpoints() const {
  Endpoints endpoints;
  if (plane_->address().has_value()) endpoints.data = FormatAddress(*plane_->address());
  if (http_ != nullptr) endpoints.http = FormatAddress(http_->address());
  if (admin_ != nullptr) endpoints.admin = FormatAddress(admin_->address());
  return endpoints;
}

absl::Status ParticipantProcess::ServeHttp() {
  health_.AddReadinessCheck([this] {
    const JoinState state = joiner_.state();
    return state.is_ready() ? std::vector<std::string>() : std::vector<std::string>{state.words};
  });
  if (!options_.config.http_listen.has_value()) return absl::OkStatus();
  collector_ = registry_.AddCollector([this](MetricWriter& writer) { WriteMetrics(writer); });
  MOEBIUS_ASSIGN_OR_RETURN(http_,
                           HttpEndpoint::Start(*options_.config.http_listen, registry_, health_));
  return absl::OkStatus();
}

absl::Status ParticipantProcess::ServeAdmin() {
  if (!options_.config.admin_listen.has_value()) return absl::OkStatus();
  RpcServerOptions server;
  server.listen = *options_.config.admin_listen;
  server.kind = PortKind::kAdmin;
  server.reflection = true;
  server.on_refusal = NotingOfPeers();
  MOEBIUS_ASSIGN_OR_RETURN(admin_, StartRpcPort(options_.config, std::move(server), health_rpc_,
                                                options_.admin_services));
  return absl::OkStatus();
}

void ParticipantProcess::WriteMetrics(MetricWriter& writer) {
  const Greeting& own = options_.greeting;
  WriteProcessFacts({std::string(RoleName(own.role)), own.version, own.config_hash,
                     own.numeric_class, options_.dtype, own.tier},
                    writer);
  if (const Logger* logger = notices_.logger()) logger->WriteMetrics(writer);
  options_.write_metrics(writer);
}

}  // namespace moebius
