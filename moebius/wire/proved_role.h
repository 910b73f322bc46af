// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "moebius/wire/greeting.h"

namespace moebius {

/// Whether a peer may be what it says, by the name that TLS has proved (LinkFacts::identity). A
/// certificate for spiffe://moebius/ROLE, as `moebius certs init` makes them, is for that role
/// alone: PERMISSION_DENIED naming both for another. Any other name, and none, proves no role and
/// contradicts none.
absl::Status CheckProvedRole(absl::string_view identity, Role role);

}  // namespace moebius
