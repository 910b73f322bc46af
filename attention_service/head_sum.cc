// SPDX-License-Identifier: Apache-2.0
#include "attention_service/head_sum.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// Heads [begin, end) of a row whose heads have `width` elements.
void CopyHeads(const Bf16* from, HeadRange heads, int64_t width, Bf16* to) {
  std::copy_n(from + heads.begin * width, heads.size() * width, to + heads.begin * width);
}

}  // namespace

HeadSum::HeadSum(SpanCompute& compute, const KvLayout& layout, KeyWindow window, Shard shard,
                 KvExchange& exchange, ShardCounters& counters)
    : compute_(compute),
      shard_(shard),
      exchange_(exchange),
      counters_(counters),
      rounds_(compute, layout, window, shard, exchange, counters) {}

void HeadSum::BeginStep(const StepPlan& plan, uint32_t first_round) {
  is_empty_ = true;
  const int32_t num_mates = UlyssesRanksOf(plan);
  if (num_mates == 1) return;
  mates_.resize(static_cast<size_t>(num_mates));
  const int32_t first = FirstOfGroup(shard_.rank, num_mates);
  int64_t num_rows = 0;
  for (int32_t u = 0; u < num_mates; ++u) {
    Mate& mate = mates_[static_cast<size_t>(u)];
    mate.rank = first + u;
    mate.heads = QueryHeadsOf(u, num_mates, compute_.num_heads());
    mate.group_row_begin = num_rows;
    mate.num_rows = 0;
    FillOwnedRows(plan, compute_.geometry(), {first + u, shard_.num_ranks}, owned_);
    FillHeadRows(plan, owned_, mate.rows);
    for (const RoleRows& part : mate.rows) mate.num_rows += part.num_rows;
    num_rows += mate.num_rows;
  }
  if (num_rows == 0) return;
  is_empty_ = false;
  self_ = static_cast<size_t>(shard_.rank - first);
  PlanNeeds(HeadPhase::kQueries);
  PlanNeeds(HeadPhase::kOutputs);
  work_.heads = self().heads;
  work_.first_round = first_round;
  work_.rows.clear();
  for (const Mate& mate : mates_) {
    int64_t row = mate.group_row_begin;
    for (const RoleRows& part : mate.rows) {
      work_.rows.push_back(part);
      work_.rows.back().row_begin = row;
      row += part.num_rows;
    }
  }
  std::sort(work_.rows.begin(), work_.rows.end(), [](const RoleRows& a, const RoleRows& b) {
    return std::pair(a.session_index, a.position_begin) <
           std::pair(b.session_index, b.position_begin);
  });
  if (work_.heads.empty()) work_.rows.clear();
  rounds_.BeginStep(plan, work_);
  const AttentionConfig& config = compute_.facts().config;
  group_queries_.Reset(num_rows, compute_.num_heads() * config.qk_head_dim);
  group_outputs_.Reset(num_rows, compute_.num_heads() * config.v_head_dim);
}

const HeadSum::Mate* HeadSum::FindMate(int32_t rank) const {
  for (const Mate& mate : mates_) {
    if (mate.rank == rank) return &mate;
  }
  return nullptr;
}

// Queries: own heads of the others' rows. Outputs: the others' heads of own rows.
void HeadSum::PlanNeeds(HeadPhase phase) {
  std::vector<HeadNeed>& needs = needs_[static_cast<size_t>(phase)];
  needs.clear();
  for (const Mate& mate : mates_) {
    if (mate.rank == shard_.rank) continue;
    const bool is_queries = phase == HeadPhase::kQueries;
    const HeadNeed need{.holder = mate.rank,
                        .heads = is_queries ? self().heads : mate.heads,
                        .num_rows = is_queries ? mate.num_rows : self().num_rows};
    if (!need.heads.empty() && need.num_rows > 0) needs.push_back(need);
  }
}

absl::Status HeadSum::Start(const SpanCompute::Layer& layer) {
  layer_ = layer.kv.layer;
  own_queries_ = layer.queries;
  exchange_.PublishHeads(layer_, HeadPhase::kQueries);
  return exchange_.AskHeads(layer_, HeadPhase::kQueries, Needs(HeadPhase::kQueries));
}

absl::Status HeadSum::Run(const SpanCompute::Layer& layer, MutableBf16Rows out) {
  MOEBIUS_RETURN_IF_ERROR(rounds_.Start(layer_));
  {
    const WaitTimer timer(counters_);
    MOEBIUS_RETURN_IF_ERROR(exchange_.AwaitHeads(layer_, HeadPhase::kQueries, received_));
  }
  GatherQueries();
  SpanCompute::Layer group = layer;
  group.queries = group_queries_.rows();
  MOEBIUS_RETURN_IF_ERROR(rounds_.Run(group, group_outputs_.rows()));
  exchange_.PublishHeads(layer_, HeadPhase::kOutputs);
  MOEBIUS_RETURN_IF_ERROR(
      exchange_.AskHeads(layer_, HeadPhase::kOutputs, Needs(HeadPhase::kOutputs)));
  {
    const WaitTimer timer(counters_);
    MOEBIUS_RETURN_IF_ERROR(exchange_.AwaitHeads(layer_, HeadPhase::kOutputs, received_));
  }
  ScatterOutputs(out);
  return absl::OkStatus();
}

// Of what was received, and lets go of it.
void HeadSum::GatherQueries() {
  const std::vector<HeadNeed>& needs = Needs(HeadPhase::kQueries);
  const int64_t width = compute_.facts().config.qk_head_dim;
  const MutableBf16Rows group = group_queries_.rows();
  ForEachRow(self(), [&](int64_t own_row, int64_t group_row) {
    CopyHeads(own_queries_.row(own_row), self().heads, width, group.row(group_row));
  });
  for (size_t i = 0; i < needs.size(); ++i) {
    const Mate& mate = *FindMate(needs[i].holder);
    for (int64_t r = 0; r < mate.num_rows; ++r) {
      std::copy_n(received_[i].rows.row(r), received_[i].rows.width,
                  group.row(mate.group_row_begin + r) + needs[i].heads.begin * width);
    }
    counters_.head_rows_received += mate.num_rows;
  }
  received_.clear();
}

void HeadSum::ScatterOutputs(MutableBf16Rows out) {
  const std::vector<HeadNeed>& needs = Needs(HeadPhase::kOutputs);
  const int64_t width = compute_.facts().config.v_head_dim;
  ForEachRow(self(), [&](int64_t own_row, int64_t group_row) {
    CopyHeads(group_outputs_.rows().row(group_row), self().heads, width, out.row(own_row));
    for (size_t i = 0; i < needs.size(); ++i) {
      std::copy_n(received_[i].rows.row(group_row - self().group_row_begin),
                  received_[i].rows.width, out.row(own_row) + needs[i].heads.begin * width);
    }
  });
  counters_.head_rows_received += static_cast<int64_t>(needs.size()) * self().num_rows;
  received_.clear();
}

absl::StatusOr<SharedBytes> HeadSum::ReadHeads(int64_t layer, const HeadRequest& request) const {
  const Mate* asker = is_empty_ ? nullptr : FindMate(request.rank);
  const bool is_queries = request.phase == HeadPhase::kQueries;
  const HeadRange own = is_empty_ ? HeadRange{} : self().heads;
  const HeadRange shown =
      is_queries ? HeadRange{0, static_cast<int32_t>(compute_.num_heads())} : own;
  if (asker == nullptr || layer != layer_ || request.heads.begin < shown.begin ||
      request.heads.end > shown.end) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", shard_.rank, " has no heads [", request.heads.begin, ", ",
                     request.heads.end, ") of layer ", layer, " for rank ", request.rank));
  }
  const Mate& mate = is_queries ? self() : *asker;
  const AttentionConfig& config = compute_.facts().config;
  const int64_t width = is_queries ? config.qk_head_dim : config.v_head_dim;
  const int64_t count = request.heads.size() * width;
  BytesBuilder builder(static_cast<size_t>(mate.num_rows * count) * sizeof(Bf16));
  auto* to = reinterpret_cast<Bf16*>(builder.data());
  ForEachRow(mate, [&](int64_t own_row, int64_t group_row) {
    const Bf16* from =
        is_queries ? own_queries_.row(own_row) : Bf16Rows(group_outputs_.rows()).row(group_row);
    to = std::copy_n(from + request.heads.begin * width, count, to);
  });
  return std::move(builder).Share();
}

}  // namespace moebius
