// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "moebius/transport/link.h"
#include "moebius/transport/shm/shm_link.h"

namespace moebius {

/// Listens on `address`, a loopback one. See LinkProvider::Listen.
absl::StatusOr<std::unique_ptr<LinkListener>> MakeShmListener(ShmContext& context,
                                                              const Address& address,
                                                              LinkAcceptor& acceptor);

}  // namespace moebius
