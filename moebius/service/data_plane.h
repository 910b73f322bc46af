// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "moebius/model/model_config.h"
#include "moebius/service/flags.h"
#include "moebius/service/reactor_pulse.h"
#include "moebius/telemetry/log_limit.h"
#include "moebius/transport/frame/frame_limits.h"
#include "moebius/transport/link.h"
#include "moebius/transport/reactor.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// What a process of a cluster of this model accepts in a header: the widest rows and the longest
/// messages of the step protocol, at most kMaxMessageBytes. The same on all sides, whatever their
/// row budgets.
FrameLimits BuildClusterLimits(const ModelConfig& config);

using RefusalNotice = std::function<void(const LogSource&, const std::string&)>;

/// The links that the configuration asks for. PERMISSION_DENIED, INVALID_ARGUMENT or NOT_FOUND for
/// TLS material that cannot serve. The data port takes as many connections as MaxDescriptors
/// affords; `on_refusal` is GrpcOptions::on_refusal, or ShmOptions'.
absl::StatusOr<std::unique_ptr<LinkProvider>> MakeLinkProvider(const std::string& transport,
                                                               const ServiceConfig& config,
                                                               const FrameLimits& limits,
                                                               RefusalNotice on_refusal);

struct DataPlaneOptions {
  std::string name;
  Greeting greeting;
  FrameLimits limits;
  std::optional<Address> listen;
  Address advertise;  // as AdvertisedAddress takes it
};

/// The transport of one process with the reactor that drives it. Destruction says goodbye to all
/// peers.
class DataPlane {
 public:
  /// Listens before it returns, with the advertised address in the greeting. `provider` and
  /// `watcher` outlive it. UNAVAILABLE with kExitBind when the address is taken.
  static absl::StatusOr<std::unique_ptr<DataPlane>> Make(DataPlaneOptions options,
                                                         LinkProvider& provider,
                                                         PeerWatcher& watcher);
  ~DataPlane();

  Transport& transport() { return *transport_; }
  Reactor& reactor() { return reactor_; }
  /// Whether the reactor runs, for /livez; may be looked at when the data plane has gone.
  const std::shared_ptr<ReactorPulse>& pulse() const { return pulse_; }
  /// Where it listens, with the chosen port; nothing when it does not.
  const std::optional<Address>& address() const { return address_; }

 private:
  DataPlane();

  Reactor reactor_;
  const std::shared_ptr<ReactorPulse> pulse_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<ReactorThread> thread_;
  std::optional<Address> address_;
};

}  // namespace moebius
