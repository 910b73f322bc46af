// SPDX-License-Identifier: Apache-2.0
#include "attention_service/span_sum.h"

#include <algorithm>

#include "moebius/attention/merge.h"
#include "moebius/base/check.h"
#include "moebius/kernels/block_gemm.h"

namespace moebius {
namespace {

// Rows that share a key block while it is in the first cache levels.
constexpr int64_t kTaskRows = 128;
// Up to so many rows of one session may be split by spans; more rows have tasks enough.
constexpr int64_t kSplitRows = 4;
// Fold work from which a fork and join pays, in state elements.
constexpr int64_t kParallelFoldElements = int64_t{1} << 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

SpanSum::SpanSum(const AttentionFacts& facts, const KvLayout& layout, const Kernels& kernels,
                 Executor& executor)
    : facts_(facts),
      geometry_(facts.span, facts.key_block),
      kernels_(kernels),
      executor_(executor),
      is_latent_(layout.is_latent()) {
  for (int thread = 0; thread < executor.num_threads(); ++thread) {
    runners_.emplace_back(facts, layout, kernels);
  }
}

AttentionForm SpanSum::FormOf(const RoleRows& rows) const {
  if (!is_latent_) return AttentionForm::kGrouped;
  return rows.role == Role::kPrompt ? AttentionForm::kExpanded : AttentionForm::kAbsorbed;
}

int32_t SpanSum::NumKeyGroups(AttentionForm form) const {
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

int64_t SpanSum::TileRows(const RoleRows& rows, AttentionForm form) const {
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

void SpanSum::BeginStep(const StepPlan& plan) {
  rows_ = CutByRole(plan);
  tasks_.clear();
  absorbed_begin_.assign(rows_.size(), -1);
  split_.assign(rows_.size(), SplitRows{});
  num_absorbed_rows_ = 0;
  const int num_threads = executor_.num_threads();
  int64_t splittable_spans = 0;
  for (const RoleRows& rows : rows_) {
    if (rows.num_rows > kSplitRows) continue;
    splittable_spans += geometry_.NumSpans(rows.position_end()) * NumKeyGroups(FormOf(rows));
  }
  // One thread gains nothing from a split; several get two tasks each where there are spans.
  const int64_t max_task_spans = num_threads == 1 ? geometry_.NumSpans(int64_t{1} << 40)
                                                  : CeilDiv(splittable_spans, 2 * num_threads);
  int64_t num_slots = 0;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const RoleRows& rows = rows_[i];
    const AttentionForm form = FormOf(rows);
    if (form == AttentionForm::kAbsorbed) {
      absorbed_begin_[i] = num_absorbed_rows_;
      num_absorbed_rows_ += rows.num_rows;
    }
    AppendSpanTasks(rows, static_cast<int32_t>(i), geometry_,
                    {.num_key_groups = NumKeyGroups(form),
                     .tile_rows = TileRows(rows, form),
                     .split_rows = kSplitRows,
                     .max_task_spans = max_task_spans},
                    tasks_);
    if (tasks_.empty() || tasks_.back().finishes) continue;
    split_[i] = {.slot_begin = num_slots, .num_spans = geometry_.NumSpans(rows.position_end())};
    num_slots += rows.num_rows * facts_.config.num_query_heads * split_[i].num_spans;
  }
  slot_acc_.Reset(num_slots, facts_.config.v_head_dim);
  slot_m_.resize(static_cast<size_t>(num_slots));
  slot_l_.resize(static_cast<size_t>(num_slots));
}

void SpanSum::Run(const PackedAttentionLayer& weights, int64_t layer, Bf16Rows queries,
                  const KvCache& cache, MutableBf16Rows out) {
  if (num_absorbed_rows_ > 0) AbsorbQueries(weights, queries);
  const auto run_task = [&](int64_t index, int thread) {
    const SpanTask& task = tasks_[static_cast<size_t>(index)];
    const size_t i = static_cast<size_t>(task.rows_index);
    const RoleRows& rows = rows_[i];
    const AttentionForm form = FormOf(rows);
    const int64_t heads = facts_.config.num_query_heads;
    const SpanTaskInput input{
        .weights = &weights,
        .cache = &cache,
        .layer = layer,
        .form = form,
        .rows = rows,
        .queries = form == AttentionForm::kAbsorbed
                       ? Bf16Rows(absorbed_.rows())
                             .Slice(absorbed_begin_[i] * heads,
                                    (absorbed_begin_[i] + rows.num_rows) * heads)
                       : queries};
    const SplitRows& split = split_[i];
    const int64_t num_slots = rows.num_rows * heads * split.num_spans;
    const SpanTaskOutput output{
        .out = out,
        .slot_acc = slot_acc_.rows().Slice(split.slot_begin, split.slot_begin + num_slots),
        .slot_m = slot_m_.data() + split.slot_begin,
        .slot_l = slot_l_.data() + split.slot_begin,
        .num_spans = split.num_spans};
    runners_[static_cast<size_t>(thread)].Run(task, input, output);
  };
  if (tasks_.size() == 1) {
    run_task(0, 0);
  } else {
    executor_.ParallelFor(static_cast<int64_t>(tasks_.size()), run_task);
  }
  if (slot_acc_.num_rows() > 0) FoldSplitRows(out);
}

void SpanSum::AbsorbQueries(const PackedAttentionLayer& weights, Bf16Rows queries) {
  const AttentionConfig& config = facts_.config;
  const MlaConfig& mla = *config.mla;
  const int64_t heads = config.num_query_heads;
  const int64_t width = mla.kv_lora_rank + mla.qk_rope_dim;
  absorbed_.Reset(num_absorbed_rows_ * heads, width);
  const auto absorb_head = [&](int64_t head, int) {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (absorbed_begin_[i] < 0) continue;
      const RoleRows& rows = rows_[i];
      const Bf16Rows q = queries.Slice(rows.row_begin, rows.row_begin + rows.num_rows)
                             .Columns(head * config.qk_head_dim, (head + 1) * config.qk_head_dim);
      const MutableBf16Rows out(absorbed_.rows().data + (absorbed_begin_[i] * heads + head) * width,
                                rows.num_rows, width, heads * width);
      MatMulBf16(kernels_, q.Columns(0, mla.qk_nope_dim),
                 weights.heads[static_cast<size_t>(head)].query_down, {},
                 out.Columns(0, mla.kv_lora_rank));
      for (int64_t r = 0; r < rows.num_rows; ++r) {
        std::copy_n(q.row(r) + mla.qk_nope_dim, mla.qk_rope_dim, out.row(r) + mla.kv_lora_rank);
      }
    }
  };
  const int64_t multiply_adds = num_absorbed_rows_ * heads * mla.qk_nope_dim * mla.kv_lora_rank;
  if (multiply_adds < kParallelThreshold) {
    for (int64_t head = 0; head < heads; ++head) absorb_head(head, 0);
  } else {
    executor_.ParallelFor(heads, absorb_head);
  }
}

void SpanSum::FoldSplitRows(MutableBf16Rows out) {
  const bool parallel = slot_acc_.num_rows() * slot_acc_.width() >= kParallelFoldElements;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (split_[i].num_spans == 0) continue;
    const int64_t count = rows_[i].num_rows * facts_.config.num_query_heads;
    const auto fold = [&](int64_t index, int) { FoldSplitRow(i, index, out); };
    if (parallel) {
      executor_.ParallelFor(count, fold);
    } else {
      for (int64_t index = 0; index < count; ++index) fold(index, 0);
    }
  }
}

void SpanSum::FoldSplitRow(size_t rows_index, int64_t row_and_head, MutableBf16Rows out) {
  const int64_t heads = facts_.config.num_query_heads;
  const int64_t row = row_and_head / heads;
  const int64_t head = row_and_head % heads;
  const RoleRows& rows = rows_[rows_index];
  const int64_t position = rows.position_begin + row;
  const int64_t first_slot =
      split_[rows_index].slot_begin + row_and_head * split_[rows_index].num_spans;
  const auto state = [&](int64_t span) -> Partial {
    const size_t slot = static_cast<size_t>(first_slot + span);
    return {.acc = slot_acc_.rows().span(first_slot + span),
            .m = slot_m_[slot],
            .l = slot_l_[slot],
            .num_keys = geometry_.NumVisibleKeys(span, position)};
  };
  Partial fold = state(0);
  for (int64_t span = 1; span < geometry_.NumSpans(position + 1); ++span) {
    MergePartial(state(span), fold);
  }
  const int64_t width = facts_.config.v_head_dim;
  NormalizePartial(fold, absl::MakeSpan(out.row(rows.row_begin + row) + head * width,
                                        static_cast<size_t>(width)));
}

}  // namespace moebius
