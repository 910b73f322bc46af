// SPDX-License-Identifier: Apache-2.0
#include "attention_service/span_sum.h"

#include <limits>

namespace moebius {
namespace {

// Up to so many rows of one session may be split by spans; more rows have tasks enough.
constexpr int64_t kSplitRows = 4;
// Fold work from which a fork and join pays, in state elements.
constexpr int64_t kParallelFoldElements = int64_t{1} << 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void SpanSum::BeginStep(absl::Span<const RoleRows> rows) {
  compute_.SetRows(rows, rows_);
  tasks_.clear();
  split_.assign(rows_.rows.size(), SplitRows{});
  const SpanGeometry& geometry = compute_.geometry();
  const int num_threads = compute_.executor().num_threads();
  int64_t splittable_spans = 0;
  for (const RoleRows& part : rows_.rows) {
    if (part.num_rows > kSplitRows) continue;
    splittable_spans +=
        SeenSpansOf(part, geometry, window_).size() * compute_.NumKeyGroups(compute_.FormOf(part));
  }
  // One thread gains nothing from a split; several get two tasks each where there are spans. Under
  // the per-degree sum tasks are whole, and SpanCompute cuts them by segments.
  const bool is_whole = num_threads == 1 || !geometry.is_canonical();
  const int64_t max_task_spans =
      is_whole ? std::numeric_limits<int64_t>::max() : CeilDiv(splittable_spans, 2 * num_threads);
  int64_t num_slots = 0;
  for (size_t i = 0; i < rows_.rows.size(); ++i) {
    const RoleRows& part = rows_.rows[i];
    const AttentionForm form = compute_.FormOf(part);
    AppendSpanTasks(part, static_cast<int32_t>(i), geometry, window_,
                    {.num_key_groups = compute_.NumKeyGroups(form),
                     .tile_rows = compute_.TileRows(part, form),
                     .split_rows = kSplitRows,
                     .max_task_spans = max_task_spans},
                    tasks_);
    if (tasks_.empty() || tasks_.back().finishes) continue;
    split_[i] = {.slot_begin = num_slots, .spans = SeenSpansOf(part, geometry, window_)};
    num_slots += part.num_rows * compute_.num_heads() * split_[i].spans.size();
  }
  slots_.Reset(num_slots, compute_.facts().config.v_head_dim);
}

void SpanSum::Run(const SpanCompute::Layer& layer, MutableBf16Rows out) {
  if (tasks_.empty()) return;
  compute_.Absorb(*layer.weights, layer.queries, rows_);
  compute_.Run(tasks_, rows_, layer, [&](const SpanTask& task) {
    const size_t i = static_cast<size_t>(task.rows_index);
    const SplitRows& split = split_[i];
    const int64_t num_slots = rows_.rows[i].num_rows * compute_.num_heads() * split.spans.size();
    return SpanTaskOutput{
        .out = out,
        .slot_acc = slots_.acc.rows().Slice(split.slot_begin, split.slot_begin + num_slots),
        .slot_m = slots_.m.data() + split.slot_begin,
        .slot_l = slots_.l.data() + split.slot_begin,
        .num_spans = split.spans.size()};
  });
  if (slots_.acc.num_rows() > 0) FoldSplitRows(out);
}

void SpanSum::FoldSplitRows(MutableBf16Rows out) {
  const int64_t heads = compute_.num_heads();
  const int64_t width = compute_.facts().config.v_head_dim;
  const bool parallel = slots_.acc.num_rows() * width >= kParallelFoldElements;
  for (size_t i = 0; i < rows_.rows.size(); ++i) {
    const SplitRows& split = split_[i];
    if (split.spans.size() == 0) continue;
    const RoleRows& part = rows_.rows[i];
    const SessionSpans spans = SpansOf(part, compute_.geometry());
    const auto fold = [&](int64_t index, int) {
      Bf16* row = out.row(part.row_begin + index / heads);
      compute_.FoldSlots(slots_,
                         {.slot = split.slot_begin + index * split.spans.size(),
                          .first_span = split.spans.begin,
                          .keys = spans.KeysOf(part.position_begin + index / heads, window_)},
                         absl::MakeSpan(row + index % heads * width, static_cast<size_t>(width)));
    };
    if (parallel) {
      compute_.executor().ParallelFor(part.num_rows * heads, fold);
    } else {
      for (int64_t index = 0; index < part.num_rows * heads; ++index) fold(index, 0);
    }
  }
}

}  // namespace moebius
