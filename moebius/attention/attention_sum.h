// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace moebius {

/// The order of the sum (docs/numerics.md): the model's spans, or the ranks' own shards, whose bits
/// depend on the number of ranks.
enum class AttentionSum : uint8_t { kCanonical = 0, kPerDegree = 1 };

/// "canonical", "per-degree".
absl::string_view AttentionSumName(AttentionSum sum);
/// Nothing when `name` is neither.
std::optional<AttentionSum> ParseAttentionSum(absl::string_view name);

}  // namespace moebius
