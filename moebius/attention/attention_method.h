// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace moebius {

/// How one layer's attention of a session is shared.
enum class AttentionMethod : uint8_t {
  kLocal = 0,       // one rank computes everything
  kAllGather = 1,   // all keys come, then all is computed
  kRingPassKv = 2,  // keys come in rounds; the next round is under way while one is computed
  kRingPassQ = 3,   // queries go to the keys, states come back
  kUlysses = 4,     // each rank computes some heads of all rows
  k2d = 5,          // Ulysses in groups of U ranks, keys in rounds across the N / U groups
};
inline constexpr int kNumAttentionMethods = 6;
inline constexpr std::array<AttentionMethod, kNumAttentionMethods> kAttentionMethods = {
    AttentionMethod::kLocal,     AttentionMethod::kAllGather, AttentionMethod::kRingPassKv,
    AttentionMethod::kRingPassQ, AttentionMethod::kUlysses,   AttentionMethod::k2d};

/// "local", "all-gather", "ring-pass-kv", "ring-pass-q", "ulysses", "2d".
absl::string_view AttentionMethodName(AttentionMethod method);
/// False, and `method` as it was, when `name` is none of them.
bool ParseAttentionMethod(absl::string_view name, AttentionMethod* method);

}  // namespace moebius
