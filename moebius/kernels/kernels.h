// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "moebius/kernels/kernel_calls.h"
#include "moebius/kernels/tier.h"

namespace moebius {

struct AttentionKernels;

/// How 32 consecutive K of a column lie in the 16 pairs of a panel's block.
enum class PairOrder : uint8_t {
  kAdjacent,     // pair p holds (2p, 2p + 1): one element of each chain
  kWithinChain,  // pairs 2j, 2j + 1 hold (4j + 2, 4j), (4j + 3, 4j + 1): low half, high half
};

/// The kernels of one tier. All functions are thread-safe and must run in the executor's float
/// environment (base/float_environment.h); they allocate nothing. Callers normally use
/// block_gemm.h, expert_ffn.h and row_ops.h, which are written over this table.
struct Kernels : TierKernels {
  Tier tier = Tier::kPortable;
  PairOrder pair_order = PairOrder::kAdjacent;
  size_t prepared_block_bytes = 0;  // of one row and 32 K: 128 (fp32) or 64 (bf16)
  int64_t tile_rows = 6;            // of the largest register tile: calls are cut into multiples
  DecodeFp8 decode_fp8 = nullptr;   // the fastest of this host that the tier may call
  const char* decode_name = "";     // "vbmi", "avx512", "avx2" or "portable"
  const AttentionKernels* attention = nullptr;  // attention_calls.h

  /// Calls of the block sums so far in this process: the proof of what ran.
  uint64_t Executed() const { return __atomic_load_n(executed, __ATOMIC_RELAXED); }
};

/// The kernels of a tier, or null where TierReports() says that this host cannot run it. The
/// pointer lives as long as the process.
const Kernels* FindKernels(Tier tier);

/// The kernels of the best usable tier. A caller that lets users choose (flag, environment)
/// resolves the choice with ParseTier and FindKernels.
const Kernels& BestKernels();

/// One line for logs and `doctor`: tier, pair order, decoder of FP8, usable tiers and why others
/// are not.
std::string KernelInfo(const Kernels& kernels);

}  // namespace moebius
