// SPDX-License-Identifier: Apache-2.0
#include "attention_service/round_sum.h"

#include <algorithm>
#include <utility>

#include "attention_service/exchange_limits.h"
#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {

RoundSum::RoundSum(SpanCompute& compute, const KvLayout& layout, KeyWindow window, Shard shard,
                   KvExchange& exchange, ShardCounters& counters)
    : compute_(compute),
      layout_(layout),
      window_(window),
      shard_(shard),
      exchange_(exchange),
      counters_(counters),
      foreign_(layout, compute.geometry()) {}

void RoundSum::BeginStep(const StepPlan& plan, const Work& work) {
  plan_ = &plan;
  heads_ = work.heads;
  first_round_ = work.first_round;
  const AttentionConfig& config = compute_.facts().config;
  kv_heads_ = layout_.all_heads();
  if (!layout_.is_latent()) {
    kv_heads_ = KvHeadsOf(heads_, config.num_query_heads, config.num_kv_heads);
  }
  num_rounds_ = 0;
  compute_.SetRows(work.rows, rows_);
  carry_begin_.assign(rows_.rows.size(), -1);
  int64_t num_carried = 0;
  for (size_t i = 0; i < rows_.rows.size(); ++i) {
    const SpanRange seen = SeenSpans(rows_.rows[i]);
    const int64_t round_spans = RoundSpans(rows_.rows[i].session_index);
    const bool is_one_round = seen.begin / round_spans == (seen.end - 1) / round_spans;
    if (is_canonical() && is_one_round) continue;
    carry_begin_[i] = num_carried;
    num_carried += rows_.rows[i].num_rows * compute_.num_heads();
  }
  carry_.Reset(num_carried, config.v_head_dim);
  FindSessions();
  if (!is_canonical()) return PlanRing();
  for (const SessionPart part : sessions_) PlanRounds(part);
}

void RoundSum::FindSessions() {
  sessions_.clear();
  for (size_t i = 0; i < rows_.rows.size(); ++i) {
    const bool continues = i > 0 && rows_.rows[i].session_index == rows_.rows[i - 1].session_index;
    if (!continues) sessions_.push_back({i, i});
    sessions_.back().end = i + 1;
  }
}

void RoundSum::AddRound() {
  if (num_rounds_ == rounds_.size()) rounds_.emplace_back();
  Round& round = rounds_[num_rounds_++];
  round.needs.clear();
  round.tasks.clear();
  round.last_session = -1;
}

// A multiple of 2N, so that every rank has as many spans of it.
int64_t RoundSum::RoundSpans(int32_t session_index) const {
  const int64_t period = 2 * int64_t{shard_.num_ranks};
  if (SessionOf(session_index).method != AttentionMethod::kAllGather) return period;
  const int64_t pair_bytes =
      2 * compute_.geometry().span() * layout_.row_width() * static_cast<int64_t>(sizeof(Bf16));
  const int64_t pairs = std::min<int64_t>(kMaxExchangeBytes / pair_bytes, kMaxExchangeParts / 2);
  return period * std::max<int64_t>(1, pairs);
}

// The rounds of one session. The first of them joins the round before where that leaves both within
// one round's size.
void RoundSum::PlanRounds(SessionPart part) {
  const int32_t session_index = rows_.rows[part.begin].session_index;
  const int64_t round_spans = RoundSpans(session_index);
  const int64_t span_bytes =
      compute_.geometry().span() * layout_.row_width() * static_cast<int64_t>(sizeof(Bf16));
  const int64_t max_joined =
      std::min<int64_t>(2 * shard_.num_ranks - 2, kMaxExchangeBytes / span_bytes);
  const int32_t first_rank = SessionOf(session_index).first_rank;
  const auto rows = absl::MakeConstSpan(rows_.rows).subspan(part.begin, part.end - part.begin);
  FillForeignSpans(rows, compute_.geometry(), window_, shard_, spans_);
  auto next = spans_.begin();
  const int64_t num_spans = SeenSpans(rows.back()).end;
  for (int64_t first = 0; first < num_spans; first += round_spans) {
    const SpanRange spans{first, std::min(first + round_spans, num_spans)};
    std::vector<KvSpanNeed>& needs = planned_.needs;
    std::vector<SpanTask>& tasks = planned_.tasks;
    needs.clear();
    tasks.clear();
    for (; next != spans_.end() && *next < spans.end; ++next) {
      needs.push_back({SpanOwner(*next, first_rank, shard_.num_ranks), session_index, *next});
    }
    for (size_t i = part.begin; i < part.end; ++i) AppendTasks(i, spans, -1, tasks);
    if (tasks.empty()) continue;  // no row's window reaches it
    const bool joins = num_rounds_ > 0 && last().last_session != session_index &&
                       static_cast<int64_t>(last().needs.size() + needs.size()) <= max_joined;
    if (!joins) AddRound();
    last().needs.insert(last().needs.end(), needs.begin(), needs.end());
    last().tasks.insert(last().tasks.end(), tasks.begin(), tasks.end());
    last().last_session = session_index;
  }
}

void RoundSum::PlanRing() {
  if (rows_.rows.empty()) return;
  AddRound();
  for (size_t i = 0; i < rows_.rows.size(); ++i) {
    AppendTasks(i, SeenSpans(rows_.rows[i]), shard_.rank, last().tasks);
  }
  for (int32_t step = 1; step < shard_.num_ranks; ++step) {
    const int32_t holder = (shard_.rank + shard_.num_ranks - step) % shard_.num_ranks;
    AddRound();
    for (const SessionPart part : sessions_) AppendRing(part, holder);
    if (last().needs.empty()) --num_rounds_;
  }
}

// One session's shard of `holder`, in rounds that keep to the bounds of a message.
void RoundSum::AppendRing(SessionPart part, int32_t holder) {
  const int64_t span_bytes =
      compute_.geometry().max_span() * layout_.row_width() * static_cast<int64_t>(sizeof(Bf16));
  const auto max_spans = static_cast<size_t>(
      std::clamp<int64_t>(kMaxExchangeBytes / span_bytes, 1, kMaxExchangeParts));
  const int32_t session_index = rows_.rows[part.begin].session_index;
  FindSpansOfHolder(part, holder);
  for (size_t begin = 0; begin < spans_.size();) {
    if (last().needs.size() == max_spans) AddRound();
    Round& round = last();
    const size_t end = std::min(spans_.size(), begin + max_spans - round.needs.size());
    for (size_t i = begin; i < end; ++i) round.needs.push_back({holder, session_index, spans_[i]});
    for (size_t i = part.begin; i < part.end; ++i) {
      AppendTasks(i, {spans_[begin], spans_[end - 1] + 1}, holder, round.tasks);
    }
    begin = end;
  }
}

// Into spans_.
void RoundSum::FindSpansOfHolder(SessionPart part, int32_t holder) {
  const auto rows = absl::MakeConstSpan(rows_.rows).subspan(part.begin, part.end - part.begin);
  const SessionRows& session = SessionOf(rows[0].session_index);
  if (window_.is_bounded()) {
    FillForeignSpans(rows, compute_.geometry(), window_, shard_, spans_);
  } else {
    RoleRows all = rows[0];  // every prompt row of the session
    all.position_begin = 0;
    all.num_rows = std::min(session.position_end(), session.prompt_length);
    FillForeignSpans({&all, 1}, compute_.geometry(), window_, shard_, spans_);
  }
  const auto is_of_other = [&](int64_t span) {
    return SpanOwner(span, session.first_rank, shard_.num_ranks) != holder;
  };
  spans_.erase(std::remove_if(spans_.begin(), spans_.end(), is_of_other), spans_.end());
}

void RoundSum::AppendTasks(size_t rows_index, SpanRange spans, int32_t owner,
                           std::vector<SpanTask>& tasks) {
  const RoleRows& rows = rows_.rows[rows_index];
  const AttentionForm form = compute_.FormOf(rows);
  const int64_t tile_rows = compute_.TileRows(rows, form);
  const int32_t group_heads =
      static_cast<int32_t>(compute_.num_heads()) / compute_.NumKeyGroups(form);
  for (int64_t row = (rows.num_rows - 1) / tile_rows * tile_rows; row >= 0; row -= tile_rows) {
    RoleRows tile = rows;
    tile.position_begin += row;
    tile.num_rows = std::min(tile_rows, rows.num_rows - row);
    const SpanRange seen = SeenSpans(tile);
    const SpanRange both{std::max(spans.begin, seen.begin), std::min(spans.end, seen.end)};
    if (both.size() <= 0) continue;
    if (owner >= 0 && NumStatesOf(SpansOf(tile, compute_.geometry()), both, tile.first_rank,
                                  {owner, shard_.num_ranks}) == 0) {
      continue;
    }
    for (int32_t group = heads_.begin / group_heads; group * group_heads < heads_.end; ++group) {
      tasks.push_back({.rows_index = static_cast<int32_t>(rows_index),
                       .key_group = group,
                       .heads = {std::max(heads_.begin, group * group_heads),
                                 std::min(heads_.end, (group + 1) * group_heads)},
                       .row_begin = row,
                       .num_rows = tile.num_rows,
                       .span_begin = both.begin,
                       .span_end = both.end,
                       .owner = owner});
    }
  }
}

absl::Status RoundSum::Ask(size_t index, int64_t layer) {
  if (index >= num_rounds_ || rounds_[index].needs.empty()) return absl::OkStatus();
  return exchange_.AskSpans(layer, first_round_ + static_cast<uint32_t>(index),
                            rounds_[index].needs, kv_heads_);
}

absl::Status RoundSum::Start(int64_t layer) {
  if (num_rounds_ > 0) {
    counters_.HoldForeignSpans(static_cast<int64_t>(rounds_[0].needs.size()));
  }
  return Ask(0, layer);
}

absl::Status RoundSum::Run(SpanCompute::Layer layer, MutableBf16Rows out) {
  layer.kv.foreign = &foreign_;
  if (!is_canonical()) compute_.executor().Run([&] { ClearCarried(); });
  for (size_t index = 0; index < num_rounds_; ++index) {
    MOEBIUS_RETURN_IF_ERROR(RunRound(index, layer, out));
  }
  if (!is_canonical()) compute_.executor().Run([&] { FinishCarried(out); });
  return absl::OkStatus();
}

void RoundSum::ClearCarried() {
  ClearStates({carry_.acc.rows(), absl::MakeSpan(carry_.m), absl::MakeSpan(carry_.l)});
}

// Every row has met a key: its own.
void RoundSum::FinishCarried(MutableBf16Rows out) {
  const int64_t width = compute_.facts().config.v_head_dim;
  for (size_t i = 0; i < rows_.rows.size(); ++i) {
    const RoleRows& part = rows_.rows[i];
    compute_.executor().ParallelFor(part.num_rows, [&](int64_t row, int) {
      for (int32_t head = heads_.begin; head < heads_.end; ++head) {
        const int64_t slot = carry_begin_[i] + row * compute_.num_heads() + head;
        const Partial state{.acc = carry_.acc.rows().span(slot),
                            .m = carry_.m[static_cast<size_t>(slot)],
                            .l = carry_.l[static_cast<size_t>(slot)],
                            .num_keys = 1};
        Bf16* to = out.row(part.row_begin + row) + head * width;
        NormalizePartial(state, absl::MakeSpan(to, static_cast<size_t>(width)));
      }
    });
  }
}

absl::Status RoundSum::RunRound(size_t index, const SpanCompute::Layer& layer,
                                MutableBf16Rows out) {
  const Round& round = rounds_[index];
  const ShardTimer timer(counters_.round_nanoseconds);
  received_.clear();
  if (!round.needs.empty()) {
    const WaitTimer waits(counters_);
    MOEBIUS_RETURN_IF_ERROR(exchange_.AwaitSpans(
        layer.kv.layer, first_round_ + static_cast<uint32_t>(index), received_));
  }
  ++counters_.rounds;
  counters_.spans_received += static_cast<int64_t>(received_.size());
  compute_.executor().Run(
      [&] { foreign_.Pack(round.needs, received_, kv_heads_, compute_.executor()); });
  received_.clear();
  const size_t next = index + 1 < num_rounds_ ? rounds_[index + 1].needs.size() : 0;
  counters_.HoldForeignSpans(static_cast<int64_t>(round.needs.size() + next));
  MOEBIUS_RETURN_IF_ERROR(Ask(index + 1, layer.kv.layer));
  compute_.executor().Run([&] {
    compute_.Run(round.tasks, rows_, layer,
                 [&](const SpanTask& task) { return OutputOf(task, out); });
  });
  return absl::OkStatus();
}

SpanTaskOutput RoundSum::OutputOf(const SpanTask& task, MutableBf16Rows out) {
  const size_t i = static_cast<size_t>(task.rows_index);
  SpanTaskOutput output{.out = out};
  if (carry_begin_[i] < 0) return output;
  const int64_t begin = carry_begin_[i];
  const int64_t count = rows_.rows[i].num_rows * compute_.num_heads();
  output.carry = {.acc = carry_.acc.rows().Slice(begin, begin + count),
                  .m = carry_.m.data() + begin,
                  .l = carry_.l.data() + begin};
  return output;
}

}  // namespace moebius
