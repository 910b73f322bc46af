// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "moebius/rpc/health_rpc.h"
#include "moebius/rpc/rpc_server.h"
#include "moebius/service/data_plane.h"
#include "moebius/service/flags.h"
#include "moebius/service/http_endpoint.h"
#include "moebius/service/joiner.h"
#include "moebius/service/participant_description.h"
#include "moebius/service/run.h"
#include "moebius/telemetry/health.h"
#include "moebius/telemetry/registry.h"
#include "moebius/transport/frame/frame_limits.h"

namespace moebius {

/// What every process that joins a router has around its participant: the data plane and the
/// joiner on it, the HTTP port with metrics and probes, and the operators' gRPC port.
///
/// Thread-safe. `participant` and `notices` outlive it.
class ParticipantProcess {
 public:
  struct Options {
    ServiceFlags flags;
    ServiceConfig config;
    Greeting greeting;
    std::vector<NearConfig> near_configs;  // what a router's may be instead
    FrameLimits limits;                    // of the data plane
    /// What the participant's matrices are in: the label of moebius_kernel_info.
    std::string dtype = "bf16";
    /// The participant's own metrics, beside those of process, log, transport and HTTP port.
    std::function<void(MetricWriter&)> write_metrics;
    /// On the operators' port, with health and reflection; outlive the process's end.
    std::vector<grpc::Service*> admin_services;
  };

  ParticipantProcess(Options options, ProcessNotices& notices, Participant& participant);
  ~ParticipantProcess();

  /// Opens all ports and begins to join. `bind` gives the participant its transport, before any
  /// peer is dialed. UNAVAILABLE with kExitBind for a port that is taken.
  absl::Status Start(absl::FunctionRef<void(Transport&)> bind);
  /// No call of the participant begins afterwards.
  void Stop();

  /// Not ready from now on, for good.
  void SetDraining();
  /// The router is to send its work elsewhere.
  void LeaveSlot() { joiner_.Retire(absl::UnavailableError("draining")); }

  Endpoints endpoints() const;
  /// Fills name, state, version, hashes, class and tier.
  void Describe(ParticipantDescription* description) const;
  JoinState join_state() const { return joiner_.state(); }
  /// For people: "joining", "spare", "loading", "usable", "failed" or "draining".
  std::string StateName() const;

 private:
  JoinerOptions OptionsOfJoiner() const;
  RefusalNotice NotingOfPeers();
  absl::Status ServeHttp();
  absl::Status ServeAdmin();
  void WriteMetrics(MetricWriter& writer);

  // In the order of dependence; the end is the reverse.
  const Options options_;
  ProcessNotices& notices_;
  Joiner joiner_;
  std::atomic<bool> is_draining_{false};
  Registry registry_;
  Health health_;
  std::unique_ptr<HttpEndpoint> http_;
  Registry::Handle collector_;
  std::unique_ptr<LinkProvider> provider_;
  std::unique_ptr<DataPlane> plane_;
  HealthRpc health_rpc_;
  std::unique_ptr<RpcServer> admin_;
  Registry::Handle ports_collector_;
};

}  // namespace moebius
