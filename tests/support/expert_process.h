// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "expert_service/dispatch_server.h"
#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/link.h"
#include "moebius/transport/reactor.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// A reactor that runs on a thread of its own under a clock that moves only when told: what happens
/// takes real time, what waits for a timer waits for the test.
class RunningReactor {
 public:
  RunningReactor();
  ~RunningReactor();

  Reactor& reactor() { return reactor_; }
  const Clock& clock() const { return clock_; }
  /// Moves the clock in steps of 10 ms, so that beats are sent and heard on the way.
  void Advance(absl::Duration by);

 private:
  FakeClock clock_;
  Reactor reactor_{clock_};
  std::atomic<uint64_t> rounds_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

/// True as soon as `condition` holds; false when it does not within 20 s.
bool WaitFor(const std::function<bool()>& condition);

/// Whether this side of the connection may send. The other side may be a moment ahead.
bool IsConnected(const Transport& transport, PeerId peer);

/// Limits that are ample for small tests.
TransportOptions SmallTransportOptions(const std::string& name);

/// An expert service without a model, as one process would have it: a transport that dials a
/// router, an executor and a server. Its end is the process's death.
class ExpertProcess final : public PeerWatcher {
 public:
  ExpertProcess(const std::string& name, LinkProvider& provider, Reactor& reactor,
                const Clock& clock, const DispatchServerOptions& options,
                DispatchServer::Forward forward);
  ~ExpertProcess() override;

  /// Returns when the router is connected; it must listen.
  void Join(const Address& router);
  /// All connections end at once; the rest stays until the destructor.
  void Kill();
  Transport& transport() { return *transport_; }
  DispatchServer& server();
  void OnPeerState(const PeerInfo& peer) override;

 private:
  Executor executor_{1};
  std::unique_ptr<Transport> transport_;
  Mutex mutex_;
  std::unique_ptr<DispatchServer> server_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
