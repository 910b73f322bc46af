// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/attention_layout.h"

namespace moebius {

absl::string_view AttentionLayoutName(AttentionLayout layout) {
  switch (layout) {
    case AttentionLayout::kZigzag:
      return "zigzag";
    case AttentionLayout::kContiguous:
      return "contiguous";
    case AttentionLayout::kStriped:
      return "striped";
  }
  return "unknown layout";
}

std::optional<AttentionLayout> ParseAttentionLayout(absl::string_view name) {
  for (const AttentionLayout layout : kAttentionLayouts) {
    if (name == AttentionLayoutName(layout)) return layout;
  }
  return std::nullopt;
}

}  // namespace moebius
