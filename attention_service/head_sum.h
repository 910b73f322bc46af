// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "attention_service/round_sum.h"
#include "moebius/attention/head_groups.h"

namespace moebius {

/// Ulysses and 2-D: this rank's heads of the prompt rows that the ranks of its group own.
///
/// In a layer each rank of a group
///   1. shows its rows' queries, and reads its own heads of the others' queries,
///   2. computes its heads of all rows of the group, the keys in rounds from all ranks,
///   3. shows these outputs, and reads the other heads of its own rows.
/// Each (row, head) is folded by one rank in ascending order, so it has the bits of a rank alone. A
/// rank without rows of its own takes part like the others.
///
/// Not thread-safe, save that ReadHeads runs between PublishHeads and CloseHeads of the exchange.
class HeadSum {
 public:
  /// For layers with this window. Borrows `compute`, `exchange` and `counters`.
  HeadSum(SpanCompute& compute, const KvLayout& layout, KeyWindow window, Shard shard,
          KvExchange& exchange, ShardCounters& counters);

  /// Plans a step. `plan` outlives it; `first_round` as in RoundSum::Work.
  void BeginStep(const StepPlan& plan, uint32_t first_round);
  /// Nobody of the group has rows that go by heads.
  bool is_empty() const { return is_empty_; }

  /// The queries [own rows, all heads · head size] are there, until the next layer begins.
  absl::Status Start(const SpanCompute::Layer& layer);
  /// All heads of this rank's rows into `out`. After Start.
  absl::Status Run(const SpanCompute::Layer& layer, MutableBf16Rows out);

  /// What another rank of the group asks for; checked.
  absl::StatusOr<SharedBytes> ReadHeads(int64_t layer, const HeadRequest& request) const;

 private:
  // A rank of the group, this one included.
  struct Mate {
    int32_t rank = 0;
    HeadRange heads;
    std::vector<RoleRows> rows;  // row_begin: among its own rows
    int64_t num_rows = 0;
    int64_t group_row_begin = 0;  // of its first row among the group's
  };
  // Calls use(own row, group row) for each row of a mate.
  template <typename Use>
  static void ForEachRow(const Mate& mate, Use use) {
    int64_t group_row = mate.group_row_begin;
    for (const RoleRows& part : mate.rows) {
      for (int64_t r = 0; r < part.num_rows; ++r) use(part.row_begin + r, group_row++);
    }
  }

  const Mate* FindMate(int32_t rank) const;
  const Mate& self() const { return mates_[self_]; }
  void PlanNeeds(HeadPhase phase);
  const std::vector<HeadNeed>& Needs(HeadPhase phase) const {
    return needs_[static_cast<size_t>(phase)];
  }
  void GatherQueries();
  void ScatterOutputs(MutableBf16Rows out);

  SpanCompute& compute_;
  const Shard shard_;
  KvExchange& exchange_;
  ShardCounters& counters_;
  RoundSum rounds_;
  RoundSum::Work work_;
  OwnedRows owned_;  // of a mate, while a step is planned
  bool is_empty_ = true;
  std::vector<Mate> mates_;
  size_t self_ = 0;
  std::array<std::vector<HeadNeed>, kNumHeadPhases> needs_;
  std::vector<ReceivedRows> received_;
  int64_t layer_ = -1;
  Bf16Rows own_queries_;          // [own rows, all heads · head size]
  RowBatch<Bf16> group_queries_;  // [group rows, all heads · head size]: own heads are filled
  RowBatch<Bf16> group_outputs_;  // [group rows, all heads · v_head_dim]: own heads are filled
};

}  // namespace moebius
