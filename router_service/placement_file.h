// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/placement/placement.h"

namespace moebius {

/// Which service holds which expert, as an operator writes it down (docs/placement.md):
///
///   {"services": 3,
///    "rules": [{"experts": "0-15", "services": [0, 1]},
///              {"experts": ["16-31"], "services": [1, 2]},
///              {"experts": [1, 17], "layers": "3", "services": [2, 0]}],
///    "shared": [0, 1, 2],
///    "dense": [0, 1]}
///
/// A rule says which services hold its experts, the preferred one first; their number is the number
/// of replicas. A rule with "layers" holds there instead of those without. "shared" and "dense"
/// say who holds the slices of shared experts and of dense layers: each slice is on all of them,
/// and prefers the next one in turn; absent, they are as without a file, on two services.
inline constexpr size_t kMaxPlacementFileBytes = 4 << 20;

/// Rules of a file; INVALID_ARGUMENT with "SOURCE: PATH IN THE FILE: what" names the broken one:
///   1. Every routed expert of every MoE layer is named by a rule.
///   2. Two rules of a kind (with "layers", without) do not name one expert of one layer.
///   3. Experts, layers and services exist; no service is twice in one list, no list is empty.
///   4. "services" is `num_services`, and each of them holds something.
///   5. There is no other member, and no member twice.
absl::StatusOr<Placement> ParsePlacement(absl::string_view text, absl::string_view source,
                                         const PlacementShape& shape, int32_t num_services);

/// The same of a file; NOT_FOUND or INVALID_ARGUMENT where it cannot be read or is too long.
absl::StatusOr<Placement> ReadPlacementFile(const std::string& path, const PlacementShape& shape,
                                            int32_t num_services);

}  // namespace moebius
