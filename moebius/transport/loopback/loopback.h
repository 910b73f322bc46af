// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "moebius/base/mutex.h"
#include "moebius/transport/link.h"
#include "moebius/transport/reactor.h"

namespace moebius {

/// Links inside one process: frames are handed over, payload is never copied. Ports are names in
/// this provider, not sockets. All sink calls come from the reactor.
///
/// A link holds at most kLoopbackQueueBytes (or one frame) in each direction. What was taken is
/// delivered even when the writing end is destroyed.
///
/// Thread-safe.
class LoopbackProvider final : public LinkProvider {
 public:
  /// `reactor` outlives the provider, its links and its listeners.
  explicit LoopbackProvider(Reactor& reactor);
  ~LoopbackProvider() override;

  absl::string_view name() const override { return "loopback"; }
  absl::StatusOr<std::unique_ptr<LinkListener>> Listen(const Address& address,
                                                       LinkAcceptor& acceptor) override;
  absl::StatusOr<std::unique_ptr<Link>> Dial(const Address& address, Lane lane) override;

 private:
  class Ports;
  class Listener;
  Reactor& reactor_;
  std::shared_ptr<Ports> ports_;
};

inline constexpr uint64_t kLoopbackQueueBytes = uint64_t{16} << 20;

}  // namespace moebius
