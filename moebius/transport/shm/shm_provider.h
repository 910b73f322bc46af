// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/transport/link.h"
#include "moebius/transport/shm/shm_options.h"

namespace moebius {

struct ShmContext;

/// Links between processes of one user on one host, through memory that they share. README.md says
/// what is bounded and what is believed.
///
/// A port is a name of its own, not a TCP port: the same for all loopback addresses, and free or
/// taken apart from TCP's. Linux only.
///
/// Sink calls come from one thread at a time, the provider's own or one that waits for deliveries
/// (poller): a delivery that waits holds up other links.
/// Thread-safe.
class ShmLinkProvider final : public LinkProvider {
 public:
  /// INVALID_ARGUMENT when the options are not usable together; RESOURCE_EXHAUSTED without a
  /// descriptor for the thread.
  static absl::StatusOr<std::unique_ptr<ShmLinkProvider>> Make(const ShmOptions& options);
  ~ShmLinkProvider() override;

  absl::string_view name() const override { return "shm"; }
  DeliveryPoller* poller() override;
  absl::StatusOr<std::unique_ptr<LinkListener>> Listen(const Address& address,
                                                       LinkAcceptor& acceptor) override;
  absl::StatusOr<std::unique_ptr<Link>> Dial(const Address& address, Lane lane) override;

  void WriteMetrics(MetricWriter& writer) const override;

  ShmFigures figures() const;

 private:
  explicit ShmLinkProvider(std::unique_ptr<ShmContext> context);
  const std::unique_ptr<ShmContext> context_;
};

}  // namespace moebius
