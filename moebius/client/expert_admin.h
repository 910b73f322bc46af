// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"

#include "moebius/client/client.h"

namespace moebius {

/// Asks the expert service at options.target, its admin port, to take no more rows, and waits until
/// those under way are answered, at most options.timeout: DEADLINE_EXCEEDED then, and it goes on
/// draining. Blocks.
absl::Status DrainExpert(const ClientOptions& options);

}  // namespace moebius
