// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/attention_sum.h"

namespace moebius {

absl::string_view AttentionSumName(AttentionSum sum) {
  return sum == AttentionSum::kCanonical ? "canonical" : "per-degree";
}

std::optional<AttentionSum> ParseAttentionSum(absl::string_view name) {
  for (const AttentionSum sum : {AttentionSum::kCanonical, AttentionSum::kPerDegree}) {
    if (name == AttentionSumName(sum)) return sum;
  }
  return std::nullopt;
}

}  // namespace moebius
