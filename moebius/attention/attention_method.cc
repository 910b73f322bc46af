// SPDX-License-Identifier: Apache-2.0
#include "moebius/attention/attention_method.h"

namespace moebius {

absl::string_view AttentionMethodName(AttentionMethod method) {
  constexpr absl::string_view kNames[kNumAttentionMethods] = {
      "local", "all-gather", "ring-pass-kv", "ring-pass-q", "ulysses", "2d"};
  return kNames[static_cast<size_t>(method)];
}

bool ParseAttentionMethod(absl::string_view name, AttentionMethod* method) {
  for (const AttentionMethod candidate : kAttentionMethods) {
    if (AttentionMethodName(candidate) != name) continue;
    *method = candidate;
    return true;
  }
  return false;
}

}  // namespace moebius
