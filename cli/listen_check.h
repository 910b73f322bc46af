// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cli/doctor_command.h"

#include "moebius/transport/address.h"

namespace moebius {

/// "HOST:PORT,HOST:PORT", 1 to 64 of them. INVALID_ARGUMENT names the one that is none.
absl::StatusOr<std::vector<Address>> ParseListenAddresses(absl::string_view text);

/// Whether processes could listen on all of them at the same time: none is taken, each is of this
/// host and allowed. Listens for a moment, and takes no connection.
DoctorCheck CheckListenAddresses(absl::Span<const Address> addresses);

}  // namespace moebius
