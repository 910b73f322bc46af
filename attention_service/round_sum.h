// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "attention_service/foreign_kv.h"
#include "attention_service/kv_exchange.h"
#include "attention_service/shard_counters.h"
#include "attention_service/span_compute.h"
#include "moebius/attention/head_map.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/step_plan.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// Prompt rows whose keys come to them: ring pass-KV, all-gather, and some heads of a group's rows.
///
/// A session's spans come in ascending rounds of 2N (each rank owns two of them); all-gather's
/// rounds are as large as a message may be. Of a round those spans come that some row's window
/// reaches; a round without any is left out. A round is folded while the next one is on its way,
/// and the fold of the rounds so far is carried. Foreign spans held or under way never pass those
/// of two rounds, 4N - 4 where no session is gathered whole. The same bits as with every span at
/// hand.
///
/// Under the per-degree sum the rounds are the steps of a ring: the rank's own shards of all
/// sessions, then those of the ranks before it, from the nearest on. A shard comes whole, as it
/// would go round, save that windows leave out what no row reaches; a large one in several rounds.
/// One state of each row takes the shards as they come and is normalised once.
///
/// Not thread-safe. Start and Run are called off the executor and use it.
class RoundSum {
 public:
  /// What is summed in a step.
  struct Work {
    std::vector<RoleRows> rows;  // by session, then by position
    HeadRange heads;             // query heads
    uint32_t first_round = 0;    // no other sum of the step has these rounds' numbers
  };

  /// For layers with this window. Borrows `compute`, `exchange` and `counters`.
  RoundSum(SpanCompute& compute, const KvLayout& layout, KeyWindow window, Shard shard,
           KvExchange& exchange, ShardCounters& counters);

  /// Plans the rounds of a step. `plan` outlives it.
  void BeginStep(const StepPlan& plan, const Work& work);
  bool is_empty() const { return num_rounds_ == 0; }
  HeadRange AllHeads() const { return {0, static_cast<int32_t>(compute_.num_heads())}; }
  uint32_t num_rounds() const { return static_cast<uint32_t>(num_rounds_); }

  /// Asks for the first round.
  absl::Status Start(int64_t layer);
  /// The heads' outputs into `out` [rows, all heads · v_head_dim]. After Start.
  absl::Status Run(SpanCompute::Layer layer, MutableBf16Rows out);

 private:
  struct Round {
    std::vector<KvSpanNeed> needs;
    std::vector<SpanTask> tasks;
    int32_t last_session = -1;
  };

  int64_t RoundSpans(int32_t session_index) const;
  // Rows of one session: rows_.rows[begin, end).
  struct SessionPart {
    size_t begin = 0;
    size_t end = 0;
  };
  void FindSessions();
  void PlanRounds(SessionPart part);
  void PlanRing();
  void AppendRing(SessionPart part, int32_t holder);
  void FindSpansOfHolder(SessionPart part, int32_t holder);
  // `owner` as in SpanTask.
  void AppendTasks(size_t rows_index, SpanRange spans, int32_t owner, std::vector<SpanTask>& tasks);
  void AddRound();
  Round& last() { return rounds_[num_rounds_ - 1]; }
  absl::Status Ask(size_t index, int64_t layer);
  absl::Status RunRound(size_t index, const SpanCompute::Layer& layer, MutableBf16Rows out);
  SpanTaskOutput OutputOf(const SpanTask& task, MutableBf16Rows out);
  void ClearCarried();
  void FinishCarried(MutableBf16Rows out);
  bool is_canonical() const { return compute_.geometry().is_canonical(); }
  const SessionRows& SessionOf(int32_t session_index) const {
    return plan_->sessions[static_cast<size_t>(session_index)];
  }
  SpanRange SeenSpans(const RoleRows& rows) const {
    return SeenSpansOf(rows, compute_.geometry(), window_);
  }

  SpanCompute& compute_;
  const KvLayout layout_;
  const KeyWindow window_;
  const Shard shard_;
  KvExchange& exchange_;
  ShardCounters& counters_;
  const StepPlan* plan_ = nullptr;
  HeadRange heads_, kv_heads_;
  uint32_t first_round_ = 0;

  QueryRows rows_;
  std::vector<int64_t> carry_begin_;  // per RoleRows: its first row in carry_, else -1
  // Of the step the first so many; more keep their memory for steps to come.
  std::vector<Round> rounds_;
  size_t num_rounds_ = 0;
  StateSlots carry_;
  ForeignKv foreign_;
  std::vector<ReceivedRows> received_;  // of the round that runs
  // While a step is planned.
  std::vector<SessionPart> sessions_;
  std::vector<int64_t> spans_;
  Round planned_;
};

}  // namespace moebius
