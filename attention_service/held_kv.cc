// SPDX-License-Identifier: Apache-2.0
#include "attention_service/held_kv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "attention_service/head_sum.h"
#include "moebius/base/status.h"
#include "moebius/kernels/math.h"

namespace moebius {
namespace {

// A bound on what one answer may hold, far above what a rank asks for.
constexpr int64_t kMaxAnswerBytes = int64_t{256} << 20;

}  // namespace

void AppendStateTasks(const SpanCompute& compute, const RoleRows& rows, int32_t rows_index,
                      const OwnSpans& spans, std::vector<SpanTask>& tasks) {
  const AttentionForm form = compute.FormOf(rows);
  const int64_t tile_rows = compute.TileRows(rows, form);
  const SessionSpans of_session = SpansOf(rows, compute.geometry());
  const int32_t owner = of_session.is_canonical() ? -1 : spans.shard.rank;
  if (NumStatesOf(of_session, spans.spans, rows.first_rank, spans.shard) == 0) return;
  // One task goes through all own spans where they have one state.
  const auto is_owned = [&](int64_t span) {
    return owner >= 0 ||
           SpanOwner(span, rows.first_rank, spans.shard.num_ranks) == spans.shard.rank;
  };
  for (int64_t begin = spans.spans.begin; begin < spans.spans.end;) {
    if (!is_owned(begin)) {
      ++begin;
      continue;
    }
    int64_t end = begin + 1;
    while (end < spans.spans.end && is_owned(end)) ++end;
    for (int64_t row = 0; row < rows.num_rows; row += tile_rows) {
      const int64_t num_rows = std::min(tile_rows, rows.num_rows - row);
      const int64_t last_row = rows.position_begin + row + num_rows - 1;
      const int64_t seen = of_session.NumSpans(of_session.KeyEnd(last_row));
      if (seen <= begin) continue;
      for (int32_t group = 0; group < compute.NumKeyGroups(form); ++group) {
        tasks.push_back({.rows_index = rows_index,
                         .key_group = group,
                         .row_begin = row,
                         .num_rows = num_rows,
                         .span_begin = begin,
                         .span_end = std::min(end, seen),
                         .owner = owner,
                         .finishes = false,
                         .slot_begin = begin - spans.spans.begin});
      }
    }
    begin = end;
  }
}

void HeldKv::BeginStep(const StepPlan& plan) {
  plan_ = &plan;
  answers_.Age();
  index_of_.clear();
  for (size_t i = 0; i < plan.sessions.size(); ++i) {
    if (plan.sessions[i].num_rows == 0) continue;
    index_of_.push_back({plan.sessions[i].session, static_cast<int32_t>(i)});
  }
  std::sort(index_of_.begin(), index_of_.end());
}

absl::StatusOr<int32_t> HeldKv::FindSession(SessionId session) const {
  const auto found = std::lower_bound(index_of_.begin(), index_of_.end(), std::pair(session, 0));
  if (found != index_of_.end() && found->first == session) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat("session ", session.value(), " has no rows in step ", plan_->step));
}

absl::Status HeldKv::CheckLayer(int64_t layer) const {
  if (layer >= 0 && layer < static_cast<int64_t>(layers_.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("layer ", layer, " is not in [0, ", layers_.size(), ")"));
}

// Positions of an own span that the session has after the step.
absl::StatusOr<PositionRange> HeldKv::PositionsOf(const SessionSpan& span) const {
  MOEBIUS_ASSIGN_OR_RETURN(const int32_t index, FindSession(span.session));
  const SessionRows& session = plan_->sessions[static_cast<size_t>(index)];
  const SessionSpans spans(compute_.geometry(), session.prompt_length);
  const bool is_there = span.span >= 0 && span.span < spans.NumSpans(session.position_end());
  if (!is_there || SpanOwner(span.span, session.first_rank, shard_.num_ranks) != shard_.rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", shard_.rank, " holds no span ", span.span, " of session ", span.session.value()));
  }
  const PositionRange positions = spans.SpanPositions(span.span);
  return PositionRange{positions.begin, std::min(positions.end, session.position_end())};
}

absl::StatusOr<SharedBytes> HeldKv::ReadSpans(int64_t layer, const KvRequest& request) {
  MOEBIUS_RETURN_IF_ERROR(CheckLayer(layer));
  if (request.kv_heads.empty() || request.kv_heads.end > layout_.all_heads().end) {
    return absl::InvalidArgumentError(absl::StrCat("KV heads [", request.kv_heads.begin, ", ",
                                                   request.kv_heads.end, ") of ",
                                                   layout_.all_heads().end));
  }
  const int64_t width = layout_.row_width(request.kv_heads);
  const int64_t max_rows = kMaxAnswerBytes / static_cast<int64_t>(sizeof(Bf16)) / width;
  int64_t num_rows = 0;
  for (const SessionSpan& want : request.spans) {
    MOEBIUS_ASSIGN_OR_RETURN(const PositionRange positions, PositionsOf(want));
    num_rows += positions.size();
    if (num_rows > max_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat(request.spans.size(), " spans at once are too many"));
    }
  }
  BytesBuilder builder = answers_.Make(static_cast<size_t>(num_rows * width) * sizeof(Bf16));
  const MutableBf16Rows rows(reinterpret_cast<Bf16*>(builder.data()), num_rows, width);
  int64_t row = 0;
  for (const SessionSpan& want : request.spans) {
    const int32_t session_index = *FindSession(want.session);
    const PositionRange positions = *PositionsOf(want);
    for (int64_t position = positions.begin; position < positions.end;) {
      const KvCache::Home home = cache_.HomeOf(session_index, position);
      const int64_t count =
          std::min(compute_.geometry().key_block() - home.token, positions.end - position);
      layout_.ReadRows(cache_.Block(session_index, home.block, layer), home.token, request.kv_heads,
                       rows.Slice(row, row + count));
      position += count;
      row += count;
    }
  }
  return std::move(builder).Share();
}

absl::StatusOr<SharedBytes> HeldKv::ReadHeads(int64_t layer, const HeadRequest& request) {
  MOEBIUS_RETURN_IF_ERROR(CheckLayer(layer));
  if (heads_.empty()) return absl::FailedPreconditionError("this rank shares no heads");
  return heads_[static_cast<size_t>(layer)]->ReadHeads(layer, request);
}

// One part of a question: what it asks for is in this step, and its states have places.
absl::Status HeldKv::AppendQueriedRows(const QueriedRows& rows, KeyWindow window) {
  MOEBIUS_ASSIGN_OR_RETURN(const int32_t index, FindSession(rows.session));
  const SessionRows& session = plan_->sessions[static_cast<size_t>(index)];
  const SessionSpans spans(compute_.geometry(), session.prompt_length);
  if (rows.position_begin < session.position_begin ||
      rows.num_rows > session.position_end() - rows.position_begin) {
    return absl::InvalidArgumentError(absl::StrCat(rows.num_rows, " rows from position ",
                                                   rows.position_begin, " of session ",
                                                   rows.session.value(), " are not in the step"));
  }
  const bool is_prompt = rows.position_begin < session.prompt_length;
  if (is_prompt && rows.num_rows > session.prompt_length - rows.position_begin) {
    return absl::InvalidArgumentError(absl::StrCat("rows from position ", rows.position_begin,
                                                   " of session ", rows.session.value(),
                                                   " are of both roles"));
  }
  const SpanRange asked{spans.FirstSpan(rows.position_begin, window),
                        spans.EndOfAskedSpans(rows.position_begin)};
  if (rows.num_rows > 0 && spans.FirstSpan(rows.position_begin + rows.num_rows - 1, window) !=
                               spans.FirstSpan(rows.position_begin, window)) {
    return absl::InvalidArgumentError(absl::StrCat("rows from position ", rows.position_begin,
                                                   " of session ", rows.session.value(),
                                                   " do not all see from span ", asked.begin));
  }
  const RoleRows part{
      .session_index = index,
      .role = is_prompt ? TokenRole::kPrompt : TokenRole::kGenerated,
      .row_begin = parts_.empty() ? 0 : parts_.back().row_begin + parts_.back().num_rows,
      .num_rows = rows.num_rows,
      .position_begin = rows.position_begin,
      .prompt_length = session.prompt_length,
      .first_rank = session.first_rank};
  // States lie in the answer without those of other ranks' spans: a run of own spans begins at its
  // ordinal.
  const size_t first_task = tasks_.size();
  AppendStateTasks(compute_, part, static_cast<int32_t>(parts_.size()),
                   {.shard = shard_, .spans = asked}, tasks_);
  const auto num_states = [&](int64_t end) {
    return NumStatesOf(spans, {asked.begin, end}, session.first_rank, shard_);
  };
  for (size_t i = first_task; i < tasks_.size(); ++i) {
    tasks_[i].slot_begin = num_states(tasks_[i].span_begin);
  }
  parts_.push_back(part);
  slot_begin_.push_back(num_slots_);
  num_spans_.push_back(num_states(asked.end));
  num_slots_ += rows.num_rows * compute_.num_heads() * num_spans_.back();
  return absl::OkStatus();
}

absl::StatusOr<SharedBytes> HeldKv::ComputeStates(int64_t layer,
                                                  absl::Span<const QueriedRows> parts,
                                                  Bf16Rows queries) {
  MOEBIUS_RETURN_IF_ERROR(CheckLayer(layer));
  parts_.clear();
  tasks_.clear();
  slot_begin_.clear();
  num_spans_.clear();
  num_slots_ = 0;
  const int64_t v_head_dim = compute_.facts().config.v_head_dim;
  const int64_t max_slots =
      kMaxAnswerBytes / ((v_head_dim + 2) * static_cast<int64_t>(sizeof(float)));
  int64_t num_rows = 0;
  for (const QueriedRows& part : parts) {
    MOEBIUS_RETURN_IF_ERROR(AppendQueriedRows(part, compute_.facts().WindowOf(layer)));
    num_rows += part.num_rows;
    if (num_slots_ > max_slots) {
      return absl::InvalidArgumentError(absl::StrCat(num_slots_, " states at once are too many"));
    }
  }
  if (num_rows != queries.num_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(queries.num_rows, " queries came for ", num_rows, " rows"));
  }
  const bool is_canonical = compute_.geometry().is_canonical();
  compute_.SetRows(parts_, rows_);
  slots_.Reset(num_slots_, v_head_dim);
  const SpanCompute::Layer inputs{.weights = &layers_[static_cast<size_t>(layer)],
                                  .kv = {.cache = &cache_, .layer = layer},
                                  .window = compute_.facts().WindowOf(layer),
                                  .queries = queries};
  compute_.executor().Run([&] {
    compute_.Absorb(*inputs.weights, queries, rows_);
    compute_.Run(tasks_, rows_, inputs, [&](const SpanTask& task) {
      const size_t i = static_cast<size_t>(task.rows_index);
      const int64_t begin = slot_begin_[i];
      const int64_t count = rows_.rows[i].num_rows * compute_.num_heads() * num_spans_[i];
      return SpanTaskOutput{.slot_acc = slots_.acc.rows().Slice(begin, begin + count),
                            .slot_m = slots_.m.data() + begin,
                            .slot_l = slots_.l.data() + begin,
                            .num_spans = num_spans_[i]};
    });
    if (!is_canonical) NormalizeSlots();
  });
  parts_.clear();
  const int64_t num_scalars = is_canonical ? 2 : 1;
  BytesBuilder builder =
      answers_.Make(static_cast<size_t>(num_slots_ * (v_head_dim + num_scalars)) * sizeof(float));
  auto* out = reinterpret_cast<float*>(builder.data());
  for (int64_t slot = 0; slot < num_slots_; ++slot) {
    out = std::copy_n(slots_.acc.rows().row(slot), v_head_dim, out);
    *out++ = slots_.m[static_cast<size_t>(slot)];
    if (is_canonical) *out++ = slots_.l[static_cast<size_t>(slot)];
  }
  return std::move(builder).Share();
}

// (acc, m, l) to (o, lse): acc / l and m + ln l.
void HeldKv::NormalizeSlots() {
  for (int64_t slot = 0; slot < num_slots_; ++slot) {
    const float l = slots_.l[static_cast<size_t>(slot)];
    for (float& element : slots_.acc.rows().span(slot)) element = element / l;
    slots_.m[static_cast<size_t>(slot)] += Log(l);
  }
}

}  // namespace moebius
