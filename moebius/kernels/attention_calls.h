// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/tier.h"

/// Arguments of a tier's attention kernels: plain values, like kernel_calls.h.
namespace moebius {

/// The keys [begin, end) of a block that a row sees; none where end <= begin.
struct VisibleKeys {
  int32_t begin = 0;
  int32_t end = 0;

  bool empty() const { return end <= begin; }
};

/// The online softmax of one key block for a tile of rows; AccumulateKeyBlock has the formulas.
struct WeighBlockCall {
  const float* scores = nullptr;  // [num_rows, key_block] block sums, unscaled
  int64_t num_rows = 0;
  int64_t key_block = 0;  // a multiple of 32
  float scale = 1.0f;
  const VisibleKeys* visible = nullptr;  // [num_rows], none: the row is skipped, its weights are +0
  float* m = nullptr;                    // [num_rows], in and out
  float* l = nullptr;                    // [num_rows], in and out
  float* alphas = nullptr;               // [num_rows] out
  uint16_t* weights = nullptr;           // [num_rows, key_block] out: P in bf16
};

/// acc = fma(acc, alpha, products) for the rows that see a key.
struct RescaleCall {
  const float* products = nullptr;  // [num_rows, products_stride]
  int64_t products_stride = 0;
  int64_t num_rows = 0;
  int64_t width = 0;  // any
  const VisibleKeys* visible = nullptr;
  const float* alphas = nullptr;
  float* acc = nullptr;  // [num_rows, acc_stride]
  int64_t acc_stride = 0;
};

/// The element-wise half of the span kernel in one instruction set. Thread-safe.
struct AttentionKernels {
  void (*weigh_block)(const WeighBlockCall&) = nullptr;
  void (*rescale)(const RescaleCall&) = nullptr;
};

/// Those that go with a tier's block sum. The tier must be usable on this host.
const AttentionKernels& AttentionKernelsOf(Tier tier);

// One function per source file in cpu/; null where this build lacks the instruction set.
const AttentionKernels* PortableAttentionKernels();
const AttentionKernels* Avx2AttentionKernels();
const AttentionKernels* Avx512AttentionKernels();
const AttentionKernels* Avx512Bf16AttentionKernels();

}  // namespace moebius
