// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace moebius {

/// How the per-degree sum cuts a session among N ranks (session_spans.h). The canonical sum has its
/// own rule and no layout.
enum class AttentionLayout : uint8_t { kZigzag = 0, kContiguous = 1, kStriped = 2 };

inline constexpr AttentionLayout kAttentionLayouts[] = {
    AttentionLayout::kZigzag, AttentionLayout::kContiguous, AttentionLayout::kStriped};

/// "zigzag", "contiguous", "striped".
absl::string_view AttentionLayoutName(AttentionLayout layout);
/// Nothing when `name` is none of them.
std::optional<AttentionLayout> ParseAttentionLayout(absl::string_view name);

}  // namespace moebius
