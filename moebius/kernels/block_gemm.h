// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

#include "moebius/base/executor.h"
#include "moebius/kernels/kernels.h"
#include "moebius/kernels/packed_matrix.h"
#include "moebius/tensor/rows.h"

/// Products of bf16 rows with packed weights. Every output is one block sum over all of K
/// (docs/numerics.md): its bits depend on its row and its column only, never on the number of rows,
/// panels, threads or the tier.
///
/// Shapes: rows bf16 [M, K], matrix [N, K], out [M, N], row-major, any stride. M = 0 is ordinary.
/// All run on an executor thread, allocate only while a thread's scratch grows, and are thread-safe
/// for disjoint outputs. A shape or pair order that does not fit is a CHECK.
namespace moebius {

/// Serial. Writes columns [32 · panel_begin, min(N, 32 · panel_end)) of `out`, fp32, from +0.
/// `out` has all N columns.
void MatMul(const Kernels& kernels, Bf16Rows rows, const PackedMatrix& matrix, int64_t panel_begin,
            int64_t panel_end, MutableFloatRows out);

/// Serial, all columns.
void MatMul(const Kernels& kernels, Bf16Rows rows, const PackedMatrix& matrix,
            MutableFloatRows out);

/// Serial, all columns, rounded once to bf16. `bias` fp32 [N], or empty, is added in fp32 before.
void MatMulBf16(const Kernels& kernels, Bf16Rows rows, const PackedMatrix& matrix,
                absl::Span<const float> bias, MutableBf16Rows out);

/// Serial, out = bf16((g · sigmoid(g)) · u) of a gate-up matrix.
void MatMulSwiGlu(const Kernels& kernels, Bf16Rows rows, const PackedMatrix& gate_up,
                  MutableBf16Rows out);

/// The same over the executor's threads, split by panels; inline where the product is too small to
/// pay for a fork and join.
void ParallelMatMul(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                    const PackedMatrix& matrix, MutableFloatRows out);
void ParallelMatMulBf16(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                        const PackedMatrix& matrix, absl::Span<const float> bias,
                        MutableBf16Rows out);

/// Logits fp32 [M, vocab] of normalised rows with the output head. Any NaN becomes 0x7FC00000, so
/// that a hash of a row's bytes is a hash of its values.
void ParallelLogits(Executor& executor, const Kernels& kernels, Bf16Rows rows,
                    const PackedMatrix& head, MutableFloatRows out);

/// Multiply-adds from which a parallel form pays for its fork and join; below, it runs inline.
inline constexpr int64_t kParallelThreshold = int64_t{1} << 20;

/// The range of work that tasks of a parallel form take: [begin, end) of `count` items for task
/// `index` of `num_tasks`, sizes differing by at most one.
struct TaskRange {
  int64_t begin = 0;
  int64_t end = 0;
};
constexpr TaskRange SplitEvenly(int64_t count, int64_t index, int64_t num_tasks) {
  return TaskRange{count * index / num_tasks, count * (index + 1) / num_tasks};
}

}  // namespace moebius
