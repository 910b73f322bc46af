// SPDX-License-Identifier: Apache-2.0
#include "attention_service/span_compute.h"

#include <algorithm>

#include "moebius/kernels/block_gemm.h"

namespace moebius {
namespace {

// Rows that share a key block while it is in the first cache levels.
constexpr int64_t kTaskRows = 128;

// Up to so many generated rows are cut by segments; more rows have tasks enough.
constexpr int64_t kSegmentedRows = 4;

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
  const auto run = [&](const SpanTask& task, int thread, const SpanTaskOutput& output) {
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
    runners_[static_cast<size_t>(thread)].Run(task, input, output);
  };
  CutSegments(tasks, rows);
  if (!pieces_.empty()) {
    const auto is_segment = [&](size_t piece) {
      return segment_slots_[static_cast<size_t>(pieces_[piece].rows_index)].size() > 1;
    };
    executor_.ParallelFor(static_cast<int64_t>(pieces_.size()), [&](int64_t index, int thread) {
      const auto piece = static_cast<size_t>(index);
      const SpanTask& task = pieces_[piece];
      run(task, thread, is_segment(piece) ? SegmentOutput(task, rows) : output_of(task));
    });
    // Brief, and of few tasks.
    for (size_t piece = 0; piece < pieces_.size(); ++piece) {
      const bool is_first = piece == 0 || piece_task_[piece - 1] != piece_task_[piece];
      if (!is_first || !is_segment(piece)) continue;
      const SpanTask& task = tasks[piece_task_[piece]];
      FoldSegments(task, rows, output_of(task));
    }
  } else if (tasks.size() == 1) {
    run(tasks[0], 0, output_of(tasks[0]));
  } else {
    executor_.ParallelFor(static_cast<int64_t>(tasks.size()), [&](int64_t index, int thread) {
      const SpanTask& task = tasks[static_cast<size_t>(index)];
      run(task, thread, output_of(task));
    });
  }
}

// No pieces: every task is run as it is.
void SpanCompute::CutSegments(absl::Span<const SpanTask> tasks, const QueryRows& rows) {
  pieces_.clear();
  piece_task_.clear();
  const int num_threads = executor_.num_threads();
  if (geometry_.is_canonical() || num_threads == 1) return;
  if (tasks.size() >= 2 * static_cast<size_t>(num_threads)) return;
  const auto is_cut = [&](const RoleRows& part) {
    return IsSegmented(part, geometry_) && part.num_rows <= kSegmentedRows;
  };
  segment_slots_.assign(rows.rows.size(), SegmentSlots{});
  bool are_any = false;
  for (const SpanTask& task : tasks) {
    const RoleRows& part = rows.rows[static_cast<size_t>(task.rows_index)];
    if (!is_cut(part) || task.span_begin >= task.span_end) continue;
    const SessionSpans spans = SpansOf(part, geometry_);
    SegmentSlots& slots = segment_slots_[static_cast<size_t>(task.rows_index)];
    const int64_t first = spans.SegmentOf(task.span_begin);
    slots.first_segment = slots.size() == 0 ? first : std::min(slots.first_segment, first);
    slots.end_segment = std::max(slots.end_segment, spans.SegmentOf(task.span_end - 1) + 1);
    are_any = are_any || slots.size() > 1;
  }
  if (!are_any) return;
  int64_t num_slots = 0;
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    segment_slots_[i].begin = num_slots;
    num_slots += rows.rows[i].num_rows * num_heads() * segment_slots_[i].size();
  }
  segments_.Reset(num_slots, facts_.config.v_head_dim);
  segment_keys_.assign(static_cast<size_t>(num_slots), 0);
  for (size_t index = 0; index < tasks.size(); ++index) {
    const SpanTask& task = tasks[index];
    const SegmentSlots& slots = segment_slots_[static_cast<size_t>(task.rows_index)];
    if (slots.size() <= 1) {
      pieces_.push_back(task);
      piece_task_.push_back(index);
      continue;
    }
    AppendSegmentTasks(task, SpansOf(rows.rows[static_cast<size_t>(task.rows_index)], geometry_),
                       slots.first_segment, pieces_);
    piece_task_.resize(pieces_.size(), index);
  }
}

SpanTaskOutput SpanCompute::SegmentOutput(const SpanTask& task, const QueryRows& rows) {
  const size_t i = static_cast<size_t>(task.rows_index);
  const SegmentSlots& slots = segment_slots_[i];
  const int64_t count = rows.rows[i].num_rows * num_heads() * slots.size();
  return {.slot_acc = segments_.acc.rows().Slice(slots.begin, slots.begin + count),
          .slot_m = segments_.m.data() + slots.begin,
          .slot_l = segments_.l.data() + slots.begin,
          .slot_keys = segment_keys_.data() + slots.begin,
          .num_spans = slots.size()};
}

HeadRange SpanCompute::HeadsOf(const SpanTask& task, AttentionForm form) const {
  if (!task.heads.empty()) return task.heads;
  const auto heads = static_cast<int32_t>(num_heads());
  const auto group_heads = form == AttentionForm::kAbsorbed
                               ? static_cast<int32_t>(kAbsorbedGroupHeads)
                               : heads / NumKeyGroups(form);
  return {task.key_group * group_heads, std::min(heads, (task.key_group + 1) * group_heads)};
}

// What a runner does at the end of a task that has all segments.
void SpanCompute::FoldSegments(const SpanTask& task, const QueryRows& rows,
                               const SpanTaskOutput& output) {
  const RoleRows& part = rows.rows[static_cast<size_t>(task.rows_index)];
  const SegmentSlots& slots = segment_slots_[static_cast<size_t>(task.rows_index)];
  const int64_t width = facts_.config.v_head_dim;
  const HeadRange heads = HeadsOf(task, FormOf(part));
  for (int64_t row = task.row_begin; row < task.row_begin + task.num_rows; ++row) {
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      const int64_t first = slots.begin + (row * num_heads() + head) * slots.size();
      const auto state = [&](int64_t segment) -> Partial {
        const auto slot = static_cast<size_t>(first + segment);
        return {.acc = segments_.acc.rows().span(first + segment),
                .m = segments_.m[slot],
                .l = segments_.l[slot],
                .num_keys = segment_keys_[slot]};
      };
      Partial fold = state(0);
      for (int64_t segment = 1; segment < slots.size(); ++segment) {
        MergePartial(state(segment), fold);
      }
      if (task.finishes) {
        Bf16* to = output.out.row(part.row_begin + row) + head * width;
        NormalizePartial(fold, absl::MakeSpan(to, static_cast<size_t>(width)));
        continue;
      }
      const int64_t slot = (row * num_heads() + head) * output.num_spans + task.slot_begin;
      std::copy(fold.acc.begin(), fold.acc.end(), output.slot_acc.row(slot));
      output.slot_m[slot] = fold.m;
      output.slot_l[slot] = fold.l;
    }
  }
}

void SpanCompute::FoldSlots(StateSlots& slots, const RowStates& row, absl::Span<Bf16> out) const {
  const auto state = [&](int64_t span) -> Partial {
    const int64_t slot = row.slot + span - row.first_span;
    const size_t index = static_cast<size_t>(slot);
    return {.acc = slots.acc.rows().span(slot),
            .m = slots.m[index],
            .l = slots.l[index],
            .num_keys = geometry_.NumKeysIn(span, row.keys)};
  };
  const int64_t first = geometry_.SpanOf(row.keys.begin);
  Partial fold = state(first);
  for (int64_t span = first + 1; span < geometry_.NumSpans(row.keys.end); ++span) {
    MergePartial(state(span), fold);
  }
  NormalizePartial(fold, out);
}

}  // namespace moebius
