// SPDX-License-Identifier: Apache-2.0
#include "attention_service/span_compute.h"

#include <algorithm>

#include "moebius/kernels/block_gemm.h"

namespace moebius {
namespace {

// Rows that share a key block while it is in the first cache levels.
constexpr int64_t kTaskRows = 128;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

SpanCompute::SpanCompute(const AttentionFacts& facts, const SpanGeometry& geometry,
                         const KvLayout& layout, const Kernels& kernels, Executor& executor)
    : facts_(facts),
      geometry_(geometry),
      kernels_(kernels),
      executor_(executor),
      is_latent_(layout.is_latent()) {
  for (int thread = 0; thread < executor.num_threads(); ++thread) {
    runners_.emplace_back(facts, geometry, layout, kernels);
  }
}

AttentionForm SpanCompute::FormOf(const RoleRows& rows) const {
  if (!is_latent_) return AttentionForm::kGrouped;
  return rows.role == TokenRole::kPrompt ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
}

int32_t SpanCompute::NumKeyGroups(AttentionForm form) const {
  switch (form) {
    case AttentionForm::kGrouped:
      return facts_.config.num_kv_heads;
    case AttentionForm::kExpanded:
      return facts_.config.num_query_heads;
    case AttentionForm::kAbsorbed:
      return static_cast<int32_t>(CeilDiv(facts_.config.num_query_heads, kAbsorbedGroupHeads));
  }
  return 1;
}

int64_t SpanCompute::TileRows(const RoleRows& rows, AttentionForm form) const {
  switch (form) {
    case AttentionForm::kGrouped: {
      const int64_t heads = facts_.config.num_query_heads / facts_.config.num_kv_heads;
      return std::max<int64_t>(1, kTaskRows / heads);
    }
    case AttentionForm::kExpanded: {
      // Each task expands the keys again: as few row ranges as keep the threads busy.
      const int64_t wanted = 2 * executor_.num_threads();
      const int64_t ranges = CeilDiv(wanted, facts_.config.num_query_heads);
      return CeilDiv(CeilDiv(rows.num_rows, ranges), kMaxTileRows) * kMaxTileRows;
    }
    case AttentionForm::kAbsorbed:
      return std::max<int64_t>(1, kTaskRows / facts_.config.num_query_heads);
  }
  return 1;
}

void SpanCompute::SetRows(absl::Span<const RoleRows> rows, QueryRows& out) const {
  out.rows.assign(rows.begin(), rows.end());
  out.absorbed_begin.assign(out.rows.size(), -1);
  out.num_absorbed_rows = 0;
  for (size_t i = 0; i < out.rows.size(); ++i) {
    if (FormOf(out.rows[i]) != AttentionForm::kAbsorbed) continue;
    out.absorbed_begin[i] = out.num_absorbed_rows;
    out.num_absorbed_rows += out.rows[i].num_rows;
  }
}

void SpanCompute::Absorb(const PackedAttentionLayer& weights, Bf16Rows queries, QueryRows& rows) {
  if (rows.num_absorbed_rows == 0) return;
  const AttentionConfig& config = facts_.config;
  const MlaConfig& mla = *config.mla;
  const int64_t heads = config.num_query_heads;
  const int64_t width = mla.kv_lora_rank + mla.qk_rope_dim;
  rows.absorbed.Reset(rows.num_absorbed_rows * heads, width);
  const auto absorb_head = [&](int64_t head, int) {
    for (size_t i = 0; i < rows.rows.size(); ++i) {
      if (rows.absorbed_begin[i] < 0) continue;
      const RoleRows& part = rows.rows[i];
      const Bf16Rows q = queries.Slice(part.row_begin, part.row_begin + part.num_rows)
                             .Columns(head * config.qk_head_dim, (head + 1) * config.qk_head_dim);
      const MutableBf16Rows out(
          rows.absorbed.rows().data + (rows.absorbed_begin[i] * heads + head) * width,
          part.num_rows, width, heads * width);
      MatMulBf16(kernels_, q.Columns(0, mla.qk_nope_dim),
                 weights.heads[static_cast<size_t>(head)].query_down, {},
                 out.Columns(0, mla.kv_lora_rank));
      for (int64_t r = 0; r < part.num_rows; ++r) {
        std::copy_n(q.row(r) + mla.qk_nope_dim, mla.qk_rope_dim, out.row(r) + mla.kv_lora_rank);
      }
    }
  };
  const int64_t multiply_adds = rows.num_absorbed_rows * heads * mla.qk_nope_dim * mla.kv_lora_rank;
  if (multiply_adds < kParallelThreshold) {
    for (int64_t head = 0; head < heads; ++head) absorb_head(head, 0);
  } else {
    executor_.ParallelFor(heads, absorb_head);
  }
}

void SpanCompute::Run(absl::Span<const SpanTask> tasks, const QueryRows& rows, const Layer& layer,
                      absl::FunctionRef<SpanTaskOutput(const SpanTask&)> output_of) {
  const auto run_task = [&](int64_t index, int thread) {
    const SpanTask& task = tasks[static_cast<size_t>(index)];
    const size_t i = static_cast<size_t>(task.rows_index);
    const RoleRows& part = rows.rows[i];
    const int64_t absorbed = rows.absorbed_begin[i];
    const int64_t heads = num_heads();
    const SpanTaskInput input{
        .weights = layer.weights,
        .kv = layer.kv,
        .window = layer.window,
        .form = FormOf(part),
        .rows = part,
        .queries = absorbed < 0 ? layer.queries
                                : Bf16Rows(rows.absorbed.rows())
                                      .Slice(absorbed * heads, (absorbed + part.num_rows) * heads)};
    runners_[static_cast<size_t>(thread)].Run(task, input, output_of(task));
  };
  if (tasks.size() == 1) {
    run_task(0, 0);
  } else {
    executor_.ParallelFor(static_cast<int64_t>(tasks.size()), run_task);
  }
}

void SpanCompute::FoldSlots(StateSlots& slots, const RowStates& row, absl::Span<Bf16> out) const {
  const auto state = [&](int64_t span) -> Partial {
    const int64_t slot = row.slot + span - row.first_span;
    const size_t index = static_cast<size_t>(slot);
    return {.acc = slots.acc.rows().span(slot),
            .m = slots.m[index],
            .l = slots.l[index],
            .num_keys = geometry_.NumVisibleKeys(span, row.position, row.window)};
  };
  const int64_t first = geometry_.FirstSpan(row.position, row.window);
  Partial fold = state(first);
  for (int64_t span = first + 1; span < geometry_.NumSpans(row.position + 1); ++span) {
    MergePartial(state(span), fold);
  }
  NormalizePartial(fold, out);
}

}  // namespace moebius
