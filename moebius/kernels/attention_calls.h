// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "moebius/kernels/kernel_calls.h"
#include "moebius/kernels/tier.h"

/// Arguments of a tier's attention kernels: plain values, like kernel_calls.h.
namespace moebius {

/// The keys [begin, end) of a block that a row sees; none where end <= begin.
struct VisibleKeys {
  int32_t begin = 0;
  int32_t end = 0;

  bool empty() const { return end <= begin; }
};

/// How a tier's block sum reads prepared rows: per 32 K and row 32 bf16 values as they are; of
/// elements 4j … 4j + 3 the order 2, 0, 3, 1; or 32 fp32 values.
enum class RowForm : int32_t { kBf16, kBf16WithinChain, kFloat };

/// The online softmax of one key block for a tile of rows; AccumulateKeyBlock has the formulas.
struct WeighBlockCall {
  float* scores = nullptr;  // [num_rows, key_block] block sums, unscaled; overwritten
  int64_t num_rows = 0;
  int64_t key_block = 0;  // a multiple of 32
  float scale = 1.0f;
  const VisibleKeys* visible = nullptr;  // [num_rows], none: the row is skipped, its P is +0
  float* m = nullptr;                    // [num_rows], in and out
  float* l = nullptr;                    // [num_rows], in and out
  float* alphas = nullptr;               // [num_rows] out
  RowForm form = RowForm::kBf16;
  void* weights = nullptr;  // out: P rounded to bf16, as prepare_rows makes [num_rows, key_block]
};

/// A whole key block's step: scores, softmax, and the values into what came before. `scores` and
/// `values` are of the rows of `weigh`; scores.out is weigh.scores, values.prepared_rows
/// weigh.weights and values.row_scales weigh.alphas.
struct AttendBlockCall {
  BlockSumCall scores;
  WeighBlockCall weigh;
  BlockSumCall values;
};

/// What the span kernel does between its block sums, in one instruction set. Thread-safe.
struct AttentionKernels {
  void (*weigh_block)(const WeighBlockCall&) = nullptr;
  /// All of a step at once with the same bits, where block sums and softmax can run beside each
  /// other; else null. weigh.form is kBf16.
  void (*attend_block)(const AttendBlockCall&) = nullptr;
  /// Calls of attend_block so far in this process, counted inside it; null where it is.
  const uint64_t* attended = nullptr;
};

/// Those that go with a tier's block sum, on this CPU.
const AttentionKernels& ChooseAttentionKernels(Tier tier);

// One function per source file in cpu/; null where this build lacks the instruction set.
const AttentionKernels* PortableAttentionKernels();
const AttentionKernels* Avx2AttentionKernels();
const AttentionKernels* Avx512AttentionKernels();
const AttentionKernels* Avx512Bf16AttentionKernels();
const AttentionKernels* AmxAttentionKernels();
const AttentionKernels* AmxBf16AttentionKernels();  // with avx512bf16, which a virtual CPU may hide

}  // namespace moebius
