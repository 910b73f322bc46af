// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "moebius/transport/faulty/fault_plan.h"
#include "moebius/transport/link.h"
#include "moebius/transport/reactor.h"

namespace moebius {

/// Another provider's links, disturbed by a plan: what an end writes is delayed, lost, doubled,
/// damaged, held or slowed before the inner link sees it. Give each process of a test a provider of
/// its own over a shared inner one, and each direction can be disturbed alone.
///
/// Thread-safe. Held frames are released by the reactor, on its clock.
class FaultyProvider final : public LinkProvider {
 public:
  /// All arguments outlive the provider and its links.
  FaultyProvider(LinkProvider& inner, const FaultPlan& plan, Reactor& reactor);

  absl::string_view name() const override { return "faulty"; }
  absl::StatusOr<std::unique_ptr<LinkListener>> Listen(const Address& address,
                                                       LinkAcceptor& acceptor) override;
  absl::StatusOr<std::unique_ptr<Link>> Dial(const Address& address, Lane lane) override;

 private:
  class Listener;
  std::unique_ptr<Link> Wrap(std::unique_ptr<Link> inner, uint16_t port);

  LinkProvider& inner_;
  const FaultPlan& plan_;
  Reactor& reactor_;
  std::atomic<uint64_t> next_link_{0};
};

}  // namespace moebius
