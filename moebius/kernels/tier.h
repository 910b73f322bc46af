// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace moebius {

/// The instruction sets that kernels are written for, in ascending order of what they ask of a CPU.
/// All give the same bits.
enum class Tier { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// "portable", "avx2", "avx512", "avx512bf16", "amx".
absl::string_view TierName(Tier tier);

/// The inverse of TierName; nullopt for any other text.
std::optional<Tier> ParseTier(absl::string_view name);

/// Whether this process can run a tier, and if not, why, in words for `doctor` and for skipped
/// tests.
struct TierReport {
  Tier tier = Tier::kPortable;
  bool usable = false;
  /// Empty where usable; else "this CPU lacks avx512f", "not in this build", "Linux refuses the
  /// tiles' state: …" (amx) or "self-test of the block sum failed: …".
  std::string reason;
};

/// One report per tier, ascending. A tier is usable if the CPU and the operating system have its
/// instructions and its block sum passes a self-test (boundary vectors included), which runs once
/// per process at the first call, in the executor's float environment. That call also asks Linux
/// for the state of the AMX tiles, once and for all threads. Thread-safe.
const std::vector<TierReport>& TierReports();

/// The usable tiers, ascending; never empty: kPortable always passes.
std::vector<Tier> HostTiers();

}  // namespace moebius
