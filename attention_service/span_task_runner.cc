// SPDX-License-Identifier: Apache-2.0
#include "attention_service/span_task_runner.h"

#include <algorithm>
#include <utility>

#include "moebius/attention/merge.h"
#include "moebius/attention/shard.h"
#include "moebius/base/check.h"
#include "moebius/kernels/block_gemm.h"
#include "moebius/kernels/row_ops.h"

namespace moebius {
namespace {

Partial PartialOf(MutableFloatRows acc, float* m, float* l, int64_t row, int64_t num_keys) {
  return {.acc = acc.span(row), .m = m[row], .l = l[row], .num_keys = num_keys};
}

}  // namespace

SpanTaskRunner::SpanTaskRunner(const AttentionFacts& facts, const SpanGeometry& geometry,
                               const KvLayout& layout, const Kernels& kernels)
    : facts_(facts), layout_(layout), kernels_(kernels), geometry_(geometry) {}

void SpanTaskRunner::Run(const SpanTask& task, const SpanTaskInput& input,
                         const SpanTaskOutput& output) {
  Start(task, input);
  PrepareQueries(task, input);
  if (IsSegmented(input.rows, geometry_)) return RunSegments(task, input, output);
  if (!spans_->is_canonical()) return RunCarried(task, input, output);
  const bool has_earlier =
      output.carry.is_kept() && spans_->FirstSpan(position_begin_, window_) < task.span_begin;
  if (has_earlier) LoadFold(task, output.carry);
  for (int64_t span = task.span_begin; span < task.span_end; ++span) {
    ComputeSpan(task, input, span);
    if (form_ != AttentionForm::kAbsorbed) {
      TakeSpan(task, output, CurrentStates(), span);
      continue;
    }
    LetSpanWait(span);
    const bool is_last = span + 1 == task.span_end;
    if (is_last || std::ssize(waiting_) == kSpansLeavingAtOnce) {
      TakeWaitingSpans(task, input, output);
    }
  }
  if (!task.finishes) return;
  const bool has_later =
      task.span_end < spans_->NumSpans(spans_->KeyEnd(PositionOf(num_rows_ - 1)));
  if (has_later) {
    StoreFold(task, output.carry);
  } else {
    Finish(task, input, output);
  }
}

// Rows that wait for more keep their state in `carry`.
void SpanTaskRunner::RunCarried(const SpanTask& task, const SpanTaskInput& input,
                                const SpanTaskOutput& output) {
  if (output.carry.is_kept()) {
    LoadFold(task, output.carry);
    SwapWithFold(acc_);
  } else {
    ClearStates({acc_.rows(), absl::MakeSpan(m_), absl::MakeSpan(l_)});
  }
  for (int64_t span = SpanAfter(task, input, task.span_begin - 1); span < task.span_end;
       span = SpanAfter(task, input, span)) {
    ComputeSpan(task, input, span);
  }
  first_row_ = 0;
  row_end_ = num_rows_;
  if (form_ == AttentionForm::kAbsorbed) LeaveLatentSpace(input);
  if (!task.finishes) return StoreStates(task, output, CurrentStates(), task.slot_begin);
  SwapWithFold(form_ == AttentionForm::kAbsorbed ? value_acc_ : acc_);
  if (output.carry.is_kept()) return StoreFold(task, output.carry);
  for (int64_t r = 0; r < num_rows_; ++r) {
    fold_keys_[static_cast<size_t>(r)] = spans_->KeysOf(PositionOf(r), window_).size();
  }
  Finish(task, input, output);
}

void SpanTaskRunner::RunSegments(const SpanTask& task, const SpanTaskInput& input,
                                 const SpanTaskOutput& output) {
  MOEBIUS_DCHECK(!output.carry.is_kept());
  ClearStates({fold_acc_.rows(), absl::MakeSpan(fold_m_), absl::MakeSpan(fold_l_)});
  int64_t segment = -1;  // that the states are of
  for (int64_t span = SpanAfter(task, input, task.span_begin - 1); span < task.span_end;
       span = SpanAfter(task, input, span)) {
    if (spans_->SegmentOf(span) != segment) {
      if (segment >= 0) FoldSegment(input);
      segment = spans_->SegmentOf(span);
      ClearStates({acc_.rows(), absl::MakeSpan(m_), absl::MakeSpan(l_)});
      segment_keys_.assign(static_cast<size_t>(task.num_rows), 0);
    }
    ComputeSpan(task, input, span);
    for (int64_t row = 0; row < task.num_rows; ++row) {
      segment_keys_[static_cast<size_t>(row)] +=
          spans_->NumVisibleKeys(span, position_begin_ + row, window_);
    }
  }
  if (segment >= 0) FoldSegment(input);
  if (task.finishes) return Finish(task, input, output);
  first_row_ = 0;
  row_end_ = num_rows_;
  SwapWithFold(form_ == AttentionForm::kAbsorbed ? value_acc_ : acc_);
  StoreStates(task, output, CurrentStates(), task.slot_begin);
}

void SpanTaskRunner::FoldSegment(const SpanTaskInput& input) {
  first_row_ = 0;
  row_end_ = num_rows_;
  if (form_ == AttentionForm::kAbsorbed) LeaveLatentSpace(input);
  const TaskStates states = CurrentStates();
  for (int64_t r = 0; r < num_rows_; ++r) {
    FoldRow(states, r, segment_keys_[static_cast<size_t>(r / num_heads_)]);
  }
}

void SpanTaskRunner::SwapWithFold(RowBatch<float>& acc) {
  std::swap(acc, fold_acc_);
  m_.swap(fold_m_);
  l_.swap(fold_l_);
}

void SpanTaskRunner::Start(const SpanTask& task, const SpanTaskInput& input) {
  const AttentionConfig& config = facts_.config;
  form_ = input.form;
  spans_ = SpansOf(input.rows, geometry_);
  window_ = input.window;
  shape_ = layout_.shape();
  switch (input.form) {
    case AttentionForm::kGrouped:
      num_heads_ = config.num_query_heads / config.num_kv_heads;
      head_begin_ = task.key_group * num_heads_;
      break;
    case AttentionForm::kExpanded:
      num_heads_ = 1;
      head_begin_ = task.key_group;
      shape_.key_width = config.qk_head_dim;
      shape_.value_width = config.v_head_dim;
      break;
    case AttentionForm::kAbsorbed:
      head_begin_ = task.key_group * kAbsorbedGroupHeads;
      num_heads_ = std::min(kAbsorbedGroupHeads, config.num_query_heads - head_begin_);
      break;
  }
  if (!task.heads.empty()) {
    head_begin_ = task.heads.begin;
    num_heads_ = task.heads.size();
  }
  num_rows_ = task.num_rows * num_heads_;
  position_begin_ = input.rows.position_begin + task.row_begin;
  const size_t num_rows = static_cast<size_t>(num_rows_);
  acc_.Reset(num_rows_, shape_.value_width);
  m_.resize(num_rows);
  l_.resize(num_rows);
  packed_keys_.Resize(static_cast<size_t>(shape_.key_block_elements()));
  packed_values_.Resize(static_cast<size_t>(shape_.value_block_elements()));
  if (form_ == AttentionForm::kAbsorbed) {
    const int64_t num_waiting = std::clamp<int64_t>(
        spans_->is_canonical() ? task.span_end - task.span_begin : 1, 1, kSpansLeavingAtOnce);
    rounded_acc_.Reset(num_waiting * num_rows_, shape_.value_width);
    value_acc_.Reset(num_waiting * num_rows_, config.v_head_dim);
    waiting_m_.resize(static_cast<size_t>(num_waiting * num_rows_));
    waiting_l_.resize(static_cast<size_t>(num_waiting * num_rows_));
  }
  if (!task.finishes && !IsSegmented(input.rows, geometry_)) return;
  fold_acc_.Reset(num_rows_, config.v_head_dim);
  fold_m_.resize(num_rows);
  fold_l_.resize(num_rows);
  fold_keys_.assign(num_rows, 0);
}

void SpanTaskRunner::PrepareQueries(const SpanTask& task, const SpanTaskInput& input) {
  queries_.Reset(num_rows_, shape_.key_width);
  const MutableBf16Rows queries = queries_.rows();
  for (int64_t r = 0; r < num_rows_; ++r) {
    const int64_t row = task.row_begin + r / num_heads_;
    const int64_t head = head_begin_ + r % num_heads_;
    const Bf16* query =
        input.form == AttentionForm::kAbsorbed
            ? input.queries.row(row * facts_.config.num_query_heads + head)
            : input.queries.row(input.rows.row_begin + row) + head * facts_.config.qk_head_dim;
    std::copy_n(query, shape_.key_width, queries.row(r));
  }
  const int64_t num_tiles = (num_rows_ + kMaxTileRows - 1) / kMaxTileRows;
  while (static_cast<int64_t>(tiles_.size()) < num_tiles) tiles_.emplace_back();
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t begin = tile * kMaxTileRows;
    tiles_[static_cast<size_t>(tile)].Prepare(
        kernels_, Bf16Rows(queries).Slice(begin, std::min(num_rows_, begin + kMaxTileRows)));
  }
}

void SpanTaskRunner::ComputeSpan(const SpanTask& task, const SpanTaskInput& input, int64_t span) {
  const PositionRange positions = spans_->SpanPositions(span);
  const int64_t last_key_end = spans_->KeyEnd(PositionOf(num_rows_ - 1));
  // Rows before the span, unless they see the whole prompt, and those whose window has left it, see
  // nothing of it; whole tiles of them are left out.
  const bool all_see_it = positions.begin < spans_->KeyEnd(position_begin_);
  const int64_t first_position = all_see_it ? position_begin_ : positions.begin;
  first_row_ = (first_position - position_begin_) * num_heads_;
  row_end_ = num_rows_;
  if (window_.is_bounded()) {
    const int64_t position_end = positions.end + window_.size - 1;
    row_end_ = std::min(num_rows_, (position_end - position_begin_) * num_heads_);
  }
  const int64_t row_begin = first_row_ / kMaxTileRows * kMaxTileRows;
  const SpanStates states{acc_.rows(), absl::MakeSpan(m_), absl::MakeSpan(l_)};
  if (spans_->is_canonical()) ClearStates(states.Slice(row_begin, num_rows_));

  const int64_t key_end = std::min(positions.end, last_key_end);
  int64_t key = std::max(positions.begin, window_.FirstKey(first_position));
  while (key < key_end) {
    const KvView::Block block =
        input.kv.BlockOf(input.rows.session_index, span, positions, key, layout_);
    const BlockView view = View(task, input, block);
    const PositionRange keys{std::max(block.begin, positions.begin),
                             std::min(block.begin + facts_.key_block, positions.end)};
    key = keys.end;
    const Bf16* const next_keys = KeysAfter(task, input, span, key);
    for (int64_t begin = row_begin; begin < row_end_; begin += kMaxTileRows) {
      const int64_t end = std::min(num_rows_, begin + kMaxTileRows);
      const int64_t first_seen = window_.FirstKey(PositionOf(begin));
      if (spans_->KeyEnd(PositionOf(end - 1)) <= keys.begin || first_seen >= keys.end) continue;
      VisibleKeys visible[kMaxTileRows];
      const auto in_block = [&](int64_t at) {
        return static_cast<int32_t>(std::clamp(at, keys.begin, keys.end) - block.begin);
      };
      for (int64_t r = begin; r < end;) {
        const int64_t row = r / num_heads_;  // its heads see the same
        const int64_t position = position_begin_ + row;
        const VisibleKeys seen{in_block(window_.FirstKey(position)),
                               in_block(spans_->KeyEnd(position))};
        for (; r < std::min(end, (row + 1) * num_heads_); ++r) visible[r - begin] = seen;
      }
      AccumulateKeyBlock(kernels_, shape_, tiles_[static_cast<size_t>(begin / kMaxTileRows)],
                         absl::MakeConstSpan(visible, static_cast<size_t>(end - begin)), view.keys,
                         view.values, next_keys, scratch_, states.Slice(begin, end));
    }
  }
}

// The packed keys that are read after those of `span` up to `key`; null where none are.
const Bf16* SpanTaskRunner::KeysAfter(const SpanTask& task, const SpanTaskInput& input,
                                      int64_t span, int64_t key) const {
  if (input.form != AttentionForm::kGrouped) return nullptr;
  if (key == spans_->SpanPositions(span).end) {
    span = SpanAfter(task, input, span);
    if (span == task.span_end) return nullptr;
    key = std::max(spans_->SpanPositions(span).begin, window_.FirstKey(position_begin_));
  }
  if (key >= spans_->KeyEnd(PositionOf(num_rows_ - 1))) return nullptr;
  // Whoever takes spans as they come may take another one next, so this one may not be here.
  const KvView::Block block = input.kv.BlockOf(input.rows.session_index, span,
                                               spans_->SpanPositions(span), key, layout_, true);
  return block.data == nullptr ? nullptr : layout_.keys(block.data, task.key_group);
}

// The next span of the task's, or its end.
int64_t SpanTaskRunner::SpanAfter(const SpanTask& task, const SpanTaskInput& input,
                                  int64_t span) const {
  do {
    ++span;
  } while (span < task.span_end && task.owner >= 0 &&
           task.owner != SpanOwner(span, input.rows.first_rank, geometry_.num_ranks()));
  return span;
}

SpanTaskRunner::BlockView SpanTaskRunner::View(const SpanTask& task, const SpanTaskInput& input,
                                               const KvView::Block& block) {
  if (input.form == AttentionForm::kGrouped) {
    return {layout_.keys(block.data, task.key_group), layout_.values(block.data, task.key_group)};
  }
  const int64_t key_end = spans_->KeyEnd(PositionOf(num_rows_ - 1));
  const int64_t num_keys = std::min(facts_.key_block, key_end - block.begin);
  const Bf16Rows latents = layout_.latents(block.data, num_keys);
  if (input.form == AttentionForm::kExpanded) {
    return ExpandBlock(input.weights->heads[static_cast<size_t>(task.key_group)], latents);
  }
  PackKeyBlock(kernels_.pair_order, shape_, latents, packed_keys_.data());
  PackValueBlock(kernels_.pair_order, shape_, latents.Columns(0, shape_.value_width),
                 packed_values_.data());
  return {packed_keys_.data(), packed_values_.data()};
}

SpanTaskRunner::BlockView SpanTaskRunner::ExpandBlock(const LatentHead& head, Bf16Rows latents) {
  const MlaConfig& mla = *facts_.config.mla;
  const Bf16Rows compressed = latents.Columns(0, mla.kv_lora_rank);
  expanded_keys_.Reset(latents.num_rows, shape_.key_width);
  expanded_values_.Reset(latents.num_rows, shape_.value_width);
  MatMulBf16(kernels_, compressed, head.key_up, {},
             expanded_keys_.rows().Columns(0, mla.qk_nope_dim));
  for (int64_t t = 0; t < latents.num_rows; ++t) {
    std::copy_n(latents.row(t) + mla.kv_lora_rank, mla.qk_rope_dim,
                expanded_keys_.rows().row(t) + mla.qk_nope_dim);
  }
  MatMulBf16(kernels_, compressed, head.value_up, {}, expanded_values_.rows());
  PackKeyBlock(kernels_.pair_order, shape_, expanded_keys_.rows(), packed_keys_.data());
  PackValueBlock(kernels_.pair_order, shape_, expanded_values_.rows(), packed_values_.data());
  return {packed_keys_.data(), packed_values_.data()};
}

SpanTaskRunner::TaskStates SpanTaskRunner::CurrentStates() {
  return {.acc = form_ == AttentionForm::kAbsorbed ? value_acc_.rows().Slice(0, num_rows_)
                                                   : acc_.rows(),
          .m = m_.data(),
          .l = l_.data(),
          .first_row = first_row_,
          .row_end = row_end_};
}

// The current state's rows; +0 for those that see nothing of it.
void SpanTaskRunner::RoundIntoWaiting(int64_t index) {
  const MutableBf16Rows rounded =
      rounded_acc_.rows().Slice(index * num_rows_, (index + 1) * num_rows_);
  RoundRows(FloatRows(acc_.rows()).Slice(first_row_, row_end_),
            rounded.Slice(first_row_, row_end_));
  const auto clear = [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) std::fill_n(rounded.row(r), rounded.width, Bf16{});
  };
  clear(0, first_row_);
  clear(row_end_, num_rows_);
}

// Of `num_waiting` states, head by head: W_uv is read once for all of them.
void SpanTaskRunner::LeaveLatentSpace(const SpanTaskInput& input, int64_t num_waiting) {
  const int64_t rank = shape_.value_width;
  const int64_t v_head_dim = facts_.config.v_head_dim;
  const int64_t num_rows = num_waiting * num_rows_ / num_heads_;  // of one head
  for (int64_t h = 0; h < num_heads_; ++h) {
    const Bf16Rows rows(rounded_acc_.rows().data + h * rank, num_rows, rank, num_heads_ * rank);
    const MutableFloatRows out(value_acc_.rows().data + h * v_head_dim, num_rows, v_head_dim,
                               num_heads_ * v_head_dim);
    MatMul(kernels_, rows, input.weights->heads[static_cast<size_t>(head_begin_ + h)].value_up,
           out);
  }
}

void SpanTaskRunner::LeaveLatentSpace(const SpanTaskInput& input) {
  RoundIntoWaiting(0);
  LeaveLatentSpace(input, 1);
}

void SpanTaskRunner::LetSpanWait(int64_t span) {
  const auto index = std::ssize(waiting_);
  RoundIntoWaiting(index);
  std::copy(m_.begin(), m_.end(), waiting_m_.begin() + index * num_rows_);
  std::copy(l_.begin(), l_.end(), waiting_l_.begin() + index * num_rows_);
  waiting_.push_back({.span = span, .first_row = first_row_, .row_end = row_end_});
}

void SpanTaskRunner::TakeWaitingSpans(const SpanTask& task, const SpanTaskInput& input,
                                      const SpanTaskOutput& output) {
  LeaveLatentSpace(input, std::ssize(waiting_));
  int64_t begin = 0;
  for (const WaitingSpan& waiting : waiting_) {
    TakeSpan(task, output,
             {.acc = value_acc_.rows().Slice(begin, begin + num_rows_),
              .m = waiting_m_.data() + begin,
              .l = waiting_l_.data() + begin,
              .first_row = waiting.first_row,
              .row_end = waiting.row_end},
             waiting.span);
    begin += num_rows_;
  }
  waiting_.clear();
}

// In the order of spans.
void SpanTaskRunner::TakeSpan(const SpanTask& task, const SpanTaskOutput& output,
                              const TaskStates& states, int64_t span) {
  if (!task.finishes) {
    return StoreStates(task, output, states, task.slot_begin + span - task.span_begin);
  }
  for (int64_t r = states.first_row; r < states.row_end; ++r) {
    FoldRow(states, r, spans_->NumVisibleKeys(span, PositionOf(r), window_));
  }
}

void SpanTaskRunner::FoldRow(const TaskStates& states, int64_t r, int64_t num_keys) {
  const Partial from = PartialOf(states.acc, states.m, states.l, r, num_keys);
  Partial into = PartialOf(fold_acc_.rows(), fold_m_.data(), fold_l_.data(), r,
                           fold_keys_[static_cast<size_t>(r)]);
  MergePartial(from, into);
  fold_m_[static_cast<size_t>(r)] = into.m;
  fold_l_[static_cast<size_t>(r)] = into.l;
  fold_keys_[static_cast<size_t>(r)] = into.num_keys;
}

// Of the rows that see something, each as its state `index`.
void SpanTaskRunner::StoreStates(const SpanTask& task, const SpanTaskOutput& output,
                                 const TaskStates& states, int64_t index) {
  for (int64_t r = states.first_row; r < states.row_end; ++r) {
    const int64_t row = task.row_begin + r / num_heads_;
    const int64_t head = head_begin_ + r % num_heads_;
    const int64_t slot = (row * facts_.config.num_query_heads + head) * output.num_spans + index;
    std::copy_n(states.acc.row(r), facts_.config.v_head_dim, output.slot_acc.row(slot));
    output.slot_m[slot] = states.m[r];
    output.slot_l[slot] = states.l[r];
    if (output.slot_keys != nullptr) {
      output.slot_keys[slot] = fold_keys_[static_cast<size_t>(r)];
    }
  }
}

void SpanTaskRunner::LoadFold(const SpanTask& task, const FoldCarry& carry) {
  const int64_t seen_end = spans_->SpanPositions(task.span_begin).begin;
  for (int64_t r = 0; r < num_rows_; ++r) {
    const int64_t from = CarryRow(task, r);
    std::copy_n(carry.acc.row(from), carry.acc.width, fold_acc_.rows().row(r));
    fold_m_[static_cast<size_t>(r)] = carry.m[from];
    fold_l_[static_cast<size_t>(r)] = carry.l[from];
    const PositionRange keys = spans_->KeysOf(PositionOf(r), window_);
    const int64_t seen = std::min(keys.end, seen_end) - keys.begin;
    fold_keys_[static_cast<size_t>(r)] = std::max<int64_t>(0, seen);
  }
}

void SpanTaskRunner::StoreFold(const SpanTask& task, const FoldCarry& carry) {
  MOEBIUS_DCHECK(carry.is_kept());
  for (int64_t r = 0; r < num_rows_; ++r) {
    const int64_t to = CarryRow(task, r);
    std::copy_n(fold_acc_.rows().row(r), carry.acc.width, carry.acc.row(to));
    carry.m[to] = fold_m_[static_cast<size_t>(r)];
    carry.l[to] = fold_l_[static_cast<size_t>(r)];
  }
}

void SpanTaskRunner::Finish(const SpanTask& task, const SpanTaskInput& input,
                            const SpanTaskOutput& output) {
  const int64_t v_head_dim = facts_.config.v_head_dim;
  for (int64_t r = 0; r < num_rows_; ++r) {
    Bf16* row = output.out.row(input.rows.row_begin + task.row_begin + r / num_heads_);
    const int64_t head = head_begin_ + r % num_heads_;
    NormalizePartial(PartialOf(fold_acc_.rows(), fold_m_.data(), fold_l_.data(), r,
                               fold_keys_[static_cast<size_t>(r)]),
                     absl::MakeSpan(row + head * v_head_dim, static_cast<size_t>(v_head_dim)));
  }
}

}  // namespace moebius
