// SPDX-License-Identifier: Apache-2.0
#include "tests/attention_service/local_exchange.h"

#include <algorithm>

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius::testing {

class LocalExchangeGroup::Rank final : public KvExchange {
 public:
  Rank(LocalExchangeGroup& group, int32_t rank) : group_(group), rank_(rank) {}

  void Attach(KvHolder* holder) override {
    MutexLock lock(mutex_);
    while (num_serving_ > 0) changed_.Wait(mutex_);
    holder_ = holder;
  }
  void BeginStep(const StepPlan& plan) override {
    MutexLock lock(mutex_);
    step_ = plan.step;
    refusal_ = absl::OkStatus();
    published_.clear();
    shown_heads_.clear();
    plan_ = plan;
    is_open_ = true;
    changed_.SignalAll();
  }
  void RefuseStep(const StepPlan& plan, const absl::Status& status) override {
    MutexLock lock(mutex_);
    step_ = plan.step;
    refusal_ = status;
    is_open_ = true;
    changed_.SignalAll();
  }
  void Publish(int64_t layer) override {
    MutexLock lock(mutex_);
    published_.insert(layer);
    changed_.SignalAll();
  }
  void PublishHeads(int64_t layer, HeadPhase phase) override {
    MutexLock lock(mutex_);
    shown_heads_.insert({layer, phase});
    changed_.SignalAll();
  }
  void CloseHeads() override {
    MutexLock lock(mutex_);
    shown_heads_.clear();
    while (num_serving_ > 0) changed_.Wait(mutex_);
  }
  void EndStep() override {
    MutexLock lock(mutex_);
    shown_heads_.clear();
    while (num_serving_ > 0) changed_.Wait(mutex_);
    is_open_ = false;
    asked_spans_.clear();
    asked_states_.clear();
    asked_heads_.clear();
  }

  absl::Status AskSpans(int64_t layer, uint32_t round, absl::Span<const KvSpanNeed> needs,
                        HeadRange kv_heads) override {
    asked_spans_[{layer, round}] = {{needs.begin(), needs.end()}, kv_heads};
    MOEBIUS_CHECK_LE(asked_spans_.size(), size_t{2});
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<ReceivedRows>> AwaitSpans(int64_t layer, uint32_t round) override {
    std::vector<ReceivedRows> received;
    const auto& [needs, kv_heads] = asked_spans_.at({layer, round});
    for (const KvSpanNeed& need : needs) {
      const SessionRows& session = plan_.sessions[static_cast<size_t>(need.session_index)];
      const KvRequest request{.spans = {{session.session, need.span}}, .kv_heads = kv_heads};
      MOEBIUS_ASSIGN_OR_RETURN(
          const SharedBytes bytes,
          Ask(
              need.holder, [&](Rank& other) { return other.HasLayer(layer); },
              [&](KvHolder& holder) { return holder.ReadSpans(layer, request); }));
      const PositionRange positions =
          SessionSpans(group_.geometry_, session.prompt_length).SpanPositions(need.span);
      received.push_back(
          RowsOf(bytes, std::min(positions.end, session.position_end()) - positions.begin));
    }
    asked_spans_.erase({layer, round});
    return received;
  }
  absl::Status AskStates(int64_t layer, uint32_t round, absl::Span<const StateNeed> needs,
                         Bf16Rows queries) override {
    asked_states_[{layer, round}] = {{needs.begin(), needs.end()}, queries};
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<ReceivedStates>> AwaitStates(int64_t layer, uint32_t round) override {
    const auto& [needs, queries] = asked_states_.at({layer, round});
    std::vector<ReceivedStates> received;
    for (const StateNeed& need : needs) {
      const QueriedRows part{plan_.sessions[static_cast<size_t>(need.session_index)].session,
                             need.position_begin, need.num_rows};
      const Bf16Rows rows = queries.Slice(need.row_begin, need.row_begin + need.num_rows);
      MOEBIUS_ASSIGN_OR_RETURN(const SharedBytes bytes,
                               Ask(
                                   need.holder, [&](Rank& other) { return other.HasLayer(layer); },
                                   [&](KvHolder& holder) {
                                     return holder.ComputeStates(
                                         layer, absl::MakeConstSpan(&part, 1), rows);
                                   }));
      const int64_t num_states = need.num_rows * need.num_spans * group_.num_heads_;
      const int64_t width = static_cast<int64_t>(bytes.size() / sizeof(float)) / num_states;
      received.push_back(
          {bytes, FloatRows(reinterpret_cast<const float*>(bytes.data()), num_states, width)});
    }
    asked_states_.erase({layer, round});
    return received;
  }

  absl::Status AskHeads(int64_t layer, HeadPhase phase, absl::Span<const HeadNeed> needs) override {
    asked_heads_[{layer, phase}].assign(needs.begin(), needs.end());
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<ReceivedRows>> AwaitHeads(int64_t layer, HeadPhase phase) override {
    std::vector<ReceivedRows> received;
    for (const HeadNeed& need : asked_heads_.at({layer, phase})) {
      const HeadRequest request{.phase = phase, .rank = rank_, .heads = need.heads};
      MOEBIUS_ASSIGN_OR_RETURN(
          const SharedBytes bytes,
          Ask(
              need.holder, [&](Rank& other) { return other.Shows(layer, phase); },
              [&](KvHolder& holder) { return holder.ReadHeads(layer, request); }));
      received.push_back(RowsOf(bytes, need.num_rows));
    }
    asked_heads_.erase({layer, phase});
    return received;
  }

  void Fail(const absl::Status& status) {
    MutexLock lock(mutex_);
    failure_ = status;
    changed_.SignalAll();
  }

 private:
  friend class LocalExchangeGroup;

  static ReceivedRows RowsOf(const SharedBytes& bytes, int64_t num_rows) {
    const int64_t width = static_cast<int64_t>(bytes.size() / sizeof(Bf16)) / num_rows;
    return {bytes, Bf16Rows(reinterpret_cast<const Bf16*>(bytes.data()), num_rows, width)};
  }
  // Both under the lock, which Ask takes for them.
  bool HasLayer(int64_t layer) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return published_.count(layer) > 0;
  }
  bool Shows(int64_t layer, HeadPhase phase) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return shown_heads_.count({layer, phase}) > 0;
  }

  // Calls `rank`'s holder once `is_there` holds, under that rank's lock.
  template <typename IsThere, typename Call>
  absl::StatusOr<SharedBytes> Ask(int32_t rank, const IsThere& is_there, const Call& call) {
    Rank& other = *group_.ranks_[static_cast<size_t>(rank)];
    KvHolder* holder = nullptr;
    {
      MutexLock lock(other.mutex_);
      while (other.failure_.ok() && !(other.is_open_ && other.step_ == plan_.step &&
                                      (!other.refusal_.ok() || is_there(other)))) {
        other.changed_.Wait(other.mutex_);
      }
      if (!other.failure_.ok()) return other.failure_;
      if (!other.refusal_.ok()) return other.refusal_;
      while (other.num_serving_ > 0) other.changed_.Wait(other.mutex_);
      ++other.num_serving_;
      holder = other.holder_;
    }
    absl::StatusOr<SharedBytes> answer = call(*holder);
    MutexLock lock(other.mutex_);
    --other.num_serving_;
    other.changed_.SignalAll();
    return answer;
  }

  LocalExchangeGroup& group_;
  const int32_t rank_;
  Mutex mutex_;
  CondVar changed_;
  KvHolder* holder_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  uint64_t step_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  bool is_open_ MOEBIUS_GUARDED_BY(mutex_) = false;
  absl::Status refusal_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Status failure_ MOEBIUS_GUARDED_BY(mutex_);
  int num_serving_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::set<int64_t> published_ MOEBIUS_GUARDED_BY(mutex_);
  std::set<std::pair<int64_t, HeadPhase>> shown_heads_ MOEBIUS_GUARDED_BY(mutex_);
  // The asking thread's own.
  StepPlan plan_;
  std::map<std::pair<int64_t, uint32_t>, std::pair<std::vector<KvSpanNeed>, HeadRange>>
      asked_spans_;
  std::map<std::pair<int64_t, HeadPhase>, std::vector<HeadNeed>> asked_heads_;
  std::map<std::pair<int64_t, uint32_t>, std::pair<std::vector<StateNeed>, Bf16Rows>> asked_states_;
};

LocalExchangeGroup::LocalExchangeGroup(int32_t num_ranks, const SpanGeometry& geometry,
                                       int64_t num_heads)
    : geometry_(geometry), num_heads_(num_heads) {
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, rank));
  }
}
LocalExchangeGroup::~LocalExchangeGroup() = default;
KvExchange& LocalExchangeGroup::rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }
void LocalExchangeGroup::Fail(int32_t rank, const absl::Status& status) {
  ranks_[static_cast<size_t>(rank)]->Fail(status);
}

}  // namespace moebius::testing
