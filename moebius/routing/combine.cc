// SPDX-License-Identifier: Apache-2.0
#include "moebius/routing/combine.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/tensor/bf16.h"

namespace moebius {
namespace {

// Columns that a row's sums are kept for at a time: chain and total together take 4 KiB of L1.
constexpr int64_t kBlockColumns = 512;
// Elements of one task: some 50 µs of work, against some 5 µs for a fork and join.
constexpr int64_t kTaskElements = 1 << 15;

// Two fp32 sums over the same columns.
struct BlockSums {
  alignas(64) float chain[kBlockColumns];  // of the combine group at hand
  alignas(64) float total[kBlockColumns];
};

const uint16_t* BitsOf(const Bf16* values) { return &values->bits; }

void AddTo(const Bf16* values, float* total, int64_t size) {
  for (int64_t i = 0; i < size; ++i) total[i] += ToFloat(values[i]);
}

// ToFloat(ToBf16(value)) without leaving 32 bits, so that the loop below has a vector form.
float RoundedToBf16(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  // In unsigned arithmetic: a NaN's bits may overflow before they are not chosen.
  const auto rounded = static_cast<int32_t>(static_cast<uint32_t>(bits) + 0x7FFF +
                                            ((static_cast<uint32_t>(bits) >> 16) & 1));
  const int32_t chosen = (bits & 0x7FFFFFFF) > 0x7F800000 ? (bits | 0x00400000) : rounded;
  return std::bit_cast<float>(chosen & static_cast<int32_t>(0xFFFF0000));
}

// total += bf16(chain).
void AddRounded(const float* chain, float* total, int64_t size) {
  for (int64_t i = 0; i < size; ++i) total[i] += RoundedToBf16(chain[i]);
}

void Round(const float* values, Bf16* out, int64_t size) {
  for (int64_t i = 0; i < size; ++i) out[i] = ToBf16(values[i]);
}

void CombineBlock(const Kernels& kernels, absl::Span<const CombineEntry> entries,
                  absl::Span<const MutableBf16Rows> replies, int64_t begin, int64_t size,
                  BlockSums& sums, Bf16* out) {
  std::fill_n(sums.total, size, 0.0f);
  bool in_group = false;
  for (const CombineEntry& entry : entries) {
    const Bf16* const values =
        replies[static_cast<size_t>(entry.service)].row(entry.reply_row) + begin;
    switch (entry.kind) {
      case CombineEntry::Kind::kTerm:
        if (!in_group) std::fill_n(sums.chain, size, 0.0f);
        kernels.accumulate_scaled(entry.weight, BitsOf(values), sums.chain, size);
        in_group = !entry.ends_group;
        if (entry.ends_group) AddRounded(sums.chain, sums.total, size);
        break;
      case CombineEntry::Kind::kGroupSum:
      case CombineEntry::Kind::kSlice:
        AddTo(values, sums.total, size);
        break;
      case CombineEntry::Kind::kRowSum:
        // Rounded already; adding it to +0 would turn a -0 around.
        std::copy_n(values, size, out + begin);
        return;
    }
  }
  Round(sums.total, out + begin, size);
}

void CombineRows(const Kernels& kernels, const DispatchPlan& plan,
                 absl::Span<const MutableBf16Rows> replies, int64_t row_begin, int64_t row_end,
                 MutableBf16Rows out) {
  BlockSums sums;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const absl::Span<const CombineEntry> entries = plan.Entries(row);
    for (int64_t begin = 0; begin < out.width; begin += kBlockColumns) {
      const int64_t size = std::min(kBlockColumns, out.width - begin);
      CombineBlock(kernels, entries, replies, begin, size, sums, out.row(row));
    }
  }
}

void CheckShapes(const DispatchPlan& plan, absl::Span<const MutableBf16Rows> replies,
                 MutableBf16Rows out) {
  MOEBIUS_CHECK_EQ(out.num_rows, plan.num_rows());
  MOEBIUS_CHECK_EQ(replies.size(), plan.services().size());
  for (size_t s = 0; s < replies.size(); ++s) {
    MOEBIUS_CHECK_EQ(replies[s].num_rows, plan.services()[s].num_reply_rows);
    MOEBIUS_CHECK(replies[s].num_rows == 0 || replies[s].width == out.width);
  }
}

}  // namespace

void SumTerms(const Kernels& kernels, absl::Span<const SumTerm> terms, absl::Span<Bf16> out) {
  alignas(64) float chain[kBlockColumns];
  const auto width = static_cast<int64_t>(out.size());
  for (int64_t begin = 0; begin < width; begin += kBlockColumns) {
    const int64_t size = std::min(kBlockColumns, width - begin);
    std::fill_n(chain, size, 0.0f);
    for (const SumTerm& term : terms) {
      kernels.accumulate_scaled(term.weight, BitsOf(term.values + begin), chain, size);
    }
    Round(chain, out.data() + begin, size);
  }
}

void Combine(const Kernels& kernels, const DispatchPlan& plan,
             absl::Span<const MutableBf16Rows> replies, MutableBf16Rows out) {
  CheckShapes(plan, replies, out);
  CombineRows(kernels, plan, replies, 0, out.num_rows, out);
}

void Combine(Executor& executor, const Kernels& kernels, const DispatchPlan& plan,
             absl::Span<const MutableBf16Rows> replies, MutableBf16Rows out) {
  CheckShapes(plan, replies, out);
  if (out.num_rows == 0) return;
  const int64_t elements_per_row =
      out.width * std::max<int64_t>(1, plan.counts().reply_rows / out.num_rows);
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / elements_per_row);
  const int64_t num_tasks = (out.num_rows + rows_per_task - 1) / rows_per_task;
  executor.ParallelFor(num_tasks, [&](int64_t task, int) {
    const int64_t begin = task * rows_per_task;
    const int64_t end = std::min(begin + rows_per_task, out.num_rows);
    CombineRows(kernels, plan, replies, begin, end, out);
  });
}

}  // namespace moebius
