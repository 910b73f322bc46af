// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace moebius {

/// Who listens on TCP port `port` of this host: "pid 4242 (nginx)", or "a process that this user
/// may not see", or an empty string when nobody listens there. Reads /proc; for messages only.
std::string PortOwner(uint16_t port);

}  // namespace moebius
