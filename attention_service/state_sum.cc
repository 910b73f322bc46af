// SPDX-License-Identifier: Apache-2.0
#include "attention_service/state_sum.h"

#include <algorithm>

#include "attention_service/exchange_limits.h"
#include "attention_service/held_kv.h"
#include "moebius/base/status.h"

namespace moebius {

void StateSum::BeginStep(const StepPlan& plan, const std::vector<RoleRows>& rows) {
  plan_ = &plan;
  num_batches_ = 0;
  for (const RoleRows& part : rows) PlanBatches(part);
  for (size_t i = 0; i < num_batches_; ++i) FinishBatch(batches_[i]);
}

void StateSum::AddBatch() {
  if (num_batches_ == batches_.size()) batches_.emplace_back();
  Batch& batch = batches_[num_batches_++];
  batch.parts.clear();
  batch.slot_begin.clear();
  batch.needs.clear();
  batch.tasks.clear();
  batch.owners.clear();
  batch.owners_end.clear();
  batch.num_slots = 0;
  batch.num_rows = 0;
}

// How many of the first rows see from the same span on.
int64_t StateSum::NumRowsFromOneSpan(const RoleRows& rows) const {
  if (!window_.is_bounded()) return rows.num_rows;
  const SessionSpans spans = SpansOf(rows, compute_.geometry());
  const int64_t first_span = spans.FirstSpan(rows.position_begin, window_);
  const int64_t end = spans.SpanPositions(first_span).end + window_.size - 1;
  return std::min(rows.num_rows, end - rows.position_begin);
}

// Cuts the rows so that neither a batch's queries nor its states pass the bound of a message.
void StateSum::PlanBatches(RoleRows rows) {
  const AttentionConfig& config = compute_.facts().config;
  const int64_t heads = compute_.num_heads();
  const int64_t state_bytes = (config.v_head_dim + 2) * static_cast<int64_t>(sizeof(float));
  const int64_t query_bytes = heads * config.qk_head_dim * static_cast<int64_t>(sizeof(Bf16));
  const int64_t max_rows = kMaxExchangeBytes / query_bytes;
  const int64_t row_slots = heads * NumSlots(rows);
  const int64_t max_slots = kMaxExchangeBytes / state_bytes;
  while (rows.num_rows > 0) {
    if (num_batches_ == 0) AddBatch();
    int64_t fitting =
        std::min((max_slots - last().num_slots) / row_slots, max_rows - last().num_rows);
    if (last().parts.size() == kMaxExchangeParts) fitting = 0;
    if (fitting <= 0 && !last().parts.empty()) {
      AddBatch();
      continue;
    }
    RoleRows part = rows;
    part.num_rows = std::clamp<int64_t>(fitting, 1, NumRowsFromOneSpan(rows));
    rows.row_begin += part.num_rows;
    rows.position_begin += part.num_rows;
    rows.num_rows -= part.num_rows;
    Batch& batch = last();
    batch.slot_begin.push_back(batch.num_slots);
    batch.parts.push_back(part);
    batch.num_slots += part.num_rows * heads * NumSlots(part);
    batch.num_rows += part.num_rows;
  }
}

void StateSum::FinishBatch(Batch& batch) {
  compute_.SetRows(batch.parts, batch.rows);
  for (size_t i = 0; i < batch.rows.rows.size(); ++i) {
    const RoleRows& part = batch.rows.rows[i];
    const SessionSpans spans = SpansOf(part, compute_.geometry());
    const SpanRange seen = SeenSpans(part);
    const SpanRange asked{seen.begin, spans.EndOfAskedSpans(part.position_begin)};
    const size_t first_owner = batch.owners.size();
    if (!is_canonical()) batch.owners.push_back(OwnerOf(shard_.rank, part));
    for (int32_t holder = 0; holder < shard_.num_ranks; ++holder) {
      const int64_t num_spans =
          NumStatesOf(spans, asked, part.first_rank, {holder, shard_.num_ranks});
      if (holder == shard_.rank || num_spans == 0) continue;
      batch.needs.push_back({.holder = holder,
                             .session_index = part.session_index,
                             .position_begin = part.position_begin,
                             .row_begin = part.row_begin,
                             .num_rows = part.num_rows,
                             .num_spans = num_spans});
      if (!is_canonical()) batch.owners.push_back(OwnerOf(holder, part));
    }
    const size_t first_task = batch.tasks.size();
    AppendStateTasks(compute_, part, static_cast<int32_t>(i), {.shard = shard_, .spans = seen},
                     batch.tasks);
    if (is_canonical()) continue;
    for (size_t task = first_task; task < batch.tasks.size(); ++task) {
      batch.tasks[task].slot_begin = OwnerOf(shard_.rank, part);
    }
    std::sort(batch.owners.begin() + static_cast<int64_t>(first_owner), batch.owners.end());
    batch.owners_end.push_back(batch.owners.size());
  }
}

absl::Status StateSum::Ask(size_t index, const SpanCompute::Layer& layer) {
  if (index >= num_batches_) return absl::OkStatus();
  return exchange_.AskStates(layer.kv.layer, static_cast<uint32_t>(index), batches_[index].needs,
                             layer.queries);
}

absl::Status StateSum::Run(const SpanCompute::Layer& layer, MutableBf16Rows out) {
  for (size_t index = 0; index < num_batches_; ++index) {
    MOEBIUS_RETURN_IF_ERROR(RunBatch(index, layer, out));
  }
  return absl::OkStatus();
}

absl::Status StateSum::RunBatch(size_t index, const SpanCompute::Layer& layer,
                                MutableBf16Rows out) {
  Batch& batch = batches_[index];
  slots_.Reset(batch.num_slots, compute_.facts().config.v_head_dim);
  compute_.executor().Run([&] {
    compute_.Absorb(*layer.weights, layer.queries, batch.rows);
    compute_.Run(batch.tasks, batch.rows, layer, [&](const SpanTask& task) {
      const size_t i = static_cast<size_t>(task.rows_index);
      const RoleRows& part = batch.rows.rows[i];
      const int64_t num_spans = NumSlots(part);
      const int64_t begin = batch.slot_begin[i];
      const int64_t count = part.num_rows * compute_.num_heads() * num_spans;
      return SpanTaskOutput{.slot_acc = slots_.acc.rows().Slice(begin, begin + count),
                            .slot_m = slots_.m.data() + begin,
                            .slot_l = slots_.l.data() + begin,
                            .num_spans = num_spans};
    });
  });
  {
    const WaitTimer timer(counters_);
    MOEBIUS_RETURN_IF_ERROR(
        exchange_.AwaitStates(layer.kv.layer, static_cast<uint32_t>(index), received_));
  }
  MOEBIUS_RETURN_IF_ERROR(Ask(index + 1, layer));
  compute_.executor().Run([&] {
    Store(batch);
    Fold(batch, out);
  });
  received_.clear();
  return absl::OkStatus();
}

void StateSum::Store(const Batch& batch) {
  const int64_t heads = compute_.num_heads();
  const int64_t width = compute_.facts().config.v_head_dim;
  size_t part_index = 0;
  for (size_t i = 0; i < batch.needs.size(); ++i) {
    const StateNeed& need = batch.needs[i];
    while (batch.rows.rows[part_index].row_begin != need.row_begin) ++part_index;
    const RoleRows& part = batch.rows.rows[part_index];
    const SpanRange seen = SeenSpans(part);
    int64_t from = 0;
    for (int64_t row = 0; row < need.num_rows * heads; ++row) {
      if (!is_canonical()) {
        const int64_t slot =
            batch.slot_begin[part_index] + row * NumSlots(part) + OwnerOf(need.holder, part);
        const float* values = received_[i].rows.row(from++);
        std::copy_n(values, width, slots_.acc.rows().row(slot));
        slots_.m[static_cast<size_t>(slot)] = values[width];
        slots_.l[static_cast<size_t>(slot)] = 1;
        continue;
      }
      int64_t span = seen.begin - 1;
      for (int64_t state = 0; state < need.num_spans; ++state, ++from) {
        do {
          ++span;
        } while (SpanOwner(span, part.first_rank, shard_.num_ranks) != need.holder);
        const int64_t slot = batch.slot_begin[part_index] + row * seen.size() + span - seen.begin;
        const float* values = received_[i].rows.row(from);
        std::copy_n(values, width, slots_.acc.rows().row(slot));
        slots_.m[static_cast<size_t>(slot)] = values[width];
        slots_.l[static_cast<size_t>(slot)] = values[width + 1];
      }
    }
    counters_.states_received += from;
  }
}

void StateSum::Fold(const Batch& batch, MutableBf16Rows out) {
  const int64_t heads = compute_.num_heads();
  const int64_t width = compute_.facts().config.v_head_dim;
  folded_.clear();
  for (size_t i = 0; i < batch.rows.rows.size(); ++i) {
    for (int64_t row = 0; row < batch.rows.rows[i].num_rows * heads; ++row)
      folded_.push_back({i, row});
  }
  compute_.executor().ParallelFor(static_cast<int64_t>(folded_.size()), [&](int64_t index, int) {
    const size_t i = folded_[static_cast<size_t>(index)].first;
    const int64_t row = folded_[static_cast<size_t>(index)].second;
    const RoleRows& part = batch.rows.rows[i];
    Bf16* to = out.row(part.row_begin + row / heads) + row % heads * width;
    if (!is_canonical()) {
      return FoldOwners(batch, i, row, absl::MakeSpan(to, static_cast<size_t>(width)));
    }
    const SpanRange seen = SeenSpans(part);
    const SessionSpans spans = SpansOf(part, compute_.geometry());
    compute_.FoldSlots(slots_,
                       {.slot = batch.slot_begin[i] + row * seen.size(),
                        .first_span = seen.begin,
                        .keys = spans.KeysOf(part.position_begin + row / heads, window_)},
                       absl::MakeSpan(to, static_cast<size_t>(width)));
  });
}

// Every state of them has a key.
void StateSum::FoldOwners(const Batch& batch, size_t part, int64_t row, absl::Span<Bf16> out) {
  const int64_t begin = batch.slot_begin[part] + row * shard_.num_ranks;
  const auto state = [&](int64_t owner) -> Partial {
    const auto slot = static_cast<size_t>(begin + owner);
    return {.acc = slots_.acc.rows().span(begin + owner),
            .m = slots_.m[slot],
            .l = slots_.l[slot],
            .num_keys = 1};
  };
  const size_t first = part == 0 ? 0 : batch.owners_end[part - 1];
  Partial fold = state(batch.owners[first]);
  for (size_t i = first + 1; i < batch.owners_end[part]; ++i) {
    MergePartial(state(batch.owners[i]), fold);
  }
  NormalizePartial(fold, out);
}

}  // namespace moebius
