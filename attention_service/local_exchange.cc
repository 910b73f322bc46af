// SPDX-License-Identifier: Apache-2.0
#include "attention_service/local_exchange.h"

#include <algorithm>
#include <array>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

#include "moebius/attention/session_spans.h"
#include "moebius/base/check.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// Of one kind: what an Await finds again. Two rounds may be under way.
template <typename Need>
class AskedRounds {
 public:
  struct Round {
    int64_t layer = -1;  // -1: free
    uint32_t round = 0;
    std::vector<Need> needs;
    HeadRange kv_heads;  // spans
    Bf16Rows queries;    // states
  };

  Round& Open(int64_t layer, uint32_t round, absl::Span<const Need> needs) {
    for (Round& asked : rounds_) {
      if (asked.layer >= 0) continue;
      asked.layer = layer;
      asked.round = round;
      asked.needs.assign(needs.begin(), needs.end());
      return asked;
    }
    MOEBIUS_CHECK(false && "more than two rounds of a kind are under way");
    return rounds_[0];
  }
  Round& Find(int64_t layer, uint32_t round) {
    const auto found = std::find_if(rounds_.begin(), rounds_.end(), [&](const Round& asked) {
      return asked.layer == layer && asked.round == round;
    });
    MOEBIUS_CHECK(found != rounds_.end());
    return *found;
  }
  void Clear() {
    for (Round& asked : rounds_) asked.layer = -1;
  }

 private:
  std::array<Round, 2> rounds_;
};

}  // namespace

class LocalExchange::Rank final : public KvExchange {
 public:
  Rank(LocalExchange& group, int32_t rank) : group_(group), rank_(rank) {}

  void Attach(KvHolder* holder) override {
    MutexLock lock(mutex_);
    AwaitQuiet();
    holder_ = holder;
  }
  void BeginStep(const StepPlan& plan) override {
    plan_ = plan;
    MutexLock lock(mutex_);
    key_ = KeyOf(plan);
    refusal_ = absl::OkStatus();
    std::fill(is_published_.begin(), is_published_.end(), false);
    shown_layers_.fill(-1);
    is_open_ = true;
    changed_.SignalAll();
  }
  void RefuseStep(const StepPlan& plan, const absl::Status& status) override {
    MutexLock lock(mutex_);
    key_ = KeyOf(plan);
    refusal_ = status;
    is_open_ = true;
    changed_.SignalAll();
  }
  void Publish(int64_t layer) override {
    MutexLock lock(mutex_);
    const auto index = static_cast<size_t>(layer);
    if (index >= is_published_.size()) is_published_.resize(index + 1);
    is_published_[index] = true;
    changed_.SignalAll();
  }
  void PublishHeads(int64_t layer, HeadPhase phase) override {
    MutexLock lock(mutex_);
    shown_layers_[static_cast<size_t>(phase)] = layer;
    changed_.SignalAll();
  }
  void CloseHeads() override {
    MutexLock lock(mutex_);
    shown_layers_.fill(-1);
    AwaitQuiet();
  }
  void EndStep() override {
    {
      MutexLock lock(mutex_);
      shown_layers_.fill(-1);
      AwaitQuiet();
      is_open_ = false;
    }
    asked_spans_.Clear();
    asked_states_.Clear();
    asked_heads_.Clear();
  }

  absl::Status AskSpans(int64_t layer, uint32_t round, absl::Span<const KvSpanNeed> needs,
                        HeadRange kv_heads) override {
    asked_spans_.Open(layer, round, needs).kv_heads = kv_heads;
    return absl::OkStatus();
  }
  absl::Status AwaitSpans(int64_t layer, uint32_t round, std::vector<ReceivedRows>& rows) override;
  absl::Status AskStates(int64_t layer, uint32_t round, absl::Span<const StateNeed> needs,
                         Bf16Rows queries) override {
    asked_states_.Open(layer, round, needs).queries = queries;
    return absl::OkStatus();
  }
  absl::Status AwaitStates(int64_t layer, uint32_t round,
                           std::vector<ReceivedStates>& states) override;
  absl::Status AskHeads(int64_t layer, HeadPhase phase, absl::Span<const HeadNeed> needs) override {
    asked_heads_.Open(layer, static_cast<uint32_t>(phase), needs);
    return absl::OkStatus();
  }
  absl::Status AwaitHeads(int64_t layer, HeadPhase phase, std::vector<ReceivedRows>& rows) override;

  void Fail(const absl::Status& status) {
    MutexLock lock(mutex_);
    failure_ = status;
    changed_.SignalAll();
  }

 private:
  struct StepKey {
    uint64_t term = 0;
    uint64_t step = 0;
    uint64_t attempt = 0;
    friend bool operator==(const StepKey&, const StepKey&) = default;
  };
  static StepKey KeyOf(const StepPlan& plan) { return {plan.term, plan.step, plan.attempt}; }

  static ReceivedRows RowsOf(const SharedBytes& bytes, int64_t num_rows) {
    const int64_t width = static_cast<int64_t>(bytes.size() / sizeof(Bf16)) / num_rows;
    return {bytes, Bf16Rows(reinterpret_cast<const Bf16*>(bytes.data()), num_rows, width)};
  }
  const SessionRows& SessionOf(int32_t session_index) const {
    return plan_.sessions[static_cast<size_t>(session_index)];
  }
  // Of a span, after the step.
  int64_t NumPositions(const KvSpanNeed& need) const {
    const SessionRows& session = SessionOf(need.session_index);
    const PositionRange positions =
        SessionSpans(group_.geometry_, session.prompt_length).SpanPositions(need.span);
    return std::min(positions.end, session.position_end()) - positions.begin;
  }

  bool HasLayer(int64_t layer) const MOEBIUS_REQUIRES(mutex_) {
    const auto index = static_cast<size_t>(layer);
    return index < is_published_.size() && is_published_[index];
  }
  bool Shows(int64_t layer, HeadPhase phase) const MOEBIUS_REQUIRES(mutex_) {
    return shown_layers_[static_cast<size_t>(phase)] == layer;
  }
  void AwaitQuiet() MOEBIUS_REQUIRES(mutex_) {
    while (is_serving_) changed_.Wait(mutex_);
  }

  // The holder of this rank once it has what is asked for in `plan`'s step; then it serves.
  absl::StatusOr<KvHolder*> BeginServing(const StepPlan& plan, int64_t layer,
                                         std::optional<HeadPhase> phase) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto is_there = [&]() MOEBIUS_REQUIRES(mutex_) {
      return phase.has_value() ? Shows(layer, *phase) : HasLayer(layer);
    };
    while (failure_.ok()) {
      const bool is_in_step = is_open_ && key_ == KeyOf(plan);
      if (is_in_step && !refusal_.ok()) return refusal_;
      if (is_in_step && is_there() && !is_serving_) break;
      changed_.Wait(mutex_);
    }
    if (!failure_.ok()) return failure_;
    is_serving_ = true;
    return holder_;
  }
  void EndServing() MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    is_serving_ = false;
    changed_.SignalAll();
  }
  // What `rank`'s holder answers.
  absl::StatusOr<SharedBytes> Call(
      int32_t rank, int64_t layer, std::optional<HeadPhase> phase,
      absl::FunctionRef<absl::StatusOr<SharedBytes>(KvHolder& holder)> call) {
    Rank& other = *group_.ranks_[static_cast<size_t>(rank)];
    MOEBIUS_ASSIGN_OR_RETURN(KvHolder* const holder, other.BeginServing(plan_, layer, phase));
    absl::StatusOr<SharedBytes> answer = call(*holder);
    other.EndServing();
    return answer;
  }

  LocalExchange& group_;
  const int32_t rank_;

  Mutex mutex_;
  CondVar changed_;
  KvHolder* holder_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  StepKey key_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_open_ MOEBIUS_GUARDED_BY(mutex_) = false;
  absl::Status refusal_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Status failure_ MOEBIUS_GUARDED_BY(mutex_);
  bool is_serving_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::vector<bool> is_published_ MOEBIUS_GUARDED_BY(mutex_);  // by layer
  // The layer of which heads may be read, by phase; -1: none.
  std::array<int64_t, kNumHeadPhases> shown_layers_ MOEBIUS_GUARDED_BY(mutex_) = {-1, -1};

  // Of the thread that runs this rank's steps.
  StepPlan plan_;
  AskedRounds<KvSpanNeed> asked_spans_;
  AskedRounds<StateNeed> asked_states_;
  AskedRounds<HeadNeed> asked_heads_;
  KvRequest request_;
};

absl::Status LocalExchange::Rank::AwaitSpans(int64_t layer, uint32_t round,
                                             std::vector<ReceivedRows>& rows) {
  auto& asked = asked_spans_.Find(layer, round);
  rows.assign(asked.needs.size(), ReceivedRows());
  request_.kv_heads = asked.kv_heads;
  for (size_t i = 0; i < asked.needs.size(); ++i) {
    const KvSpanNeed& need = asked.needs[i];
    request_.spans.assign(1, {SessionOf(need.session_index).session, need.span});
    MOEBIUS_ASSIGN_OR_RETURN(const SharedBytes bytes,
                             Call(need.holder, layer, std::nullopt, [&](KvHolder& holder) {
                               return holder.ReadSpans(layer, request_);
                             }));
    rows[i] = RowsOf(bytes, NumPositions(need));
  }
  asked.layer = -1;
  return absl::OkStatus();
}

absl::Status LocalExchange::Rank::AwaitStates(int64_t layer, uint32_t round,
                                              std::vector<ReceivedStates>& states) {
  auto& asked = asked_states_.Find(layer, round);
  states.assign(asked.needs.size(), ReceivedStates());
  for (size_t i = 0; i < asked.needs.size(); ++i) {
    const StateNeed& need = asked.needs[i];
    const QueriedRows part{SessionOf(need.session_index).session, need.position_begin,
                           need.num_rows};
    const Bf16Rows queries = asked.queries.Slice(need.row_begin, need.row_begin + need.num_rows);
    MOEBIUS_ASSIGN_OR_RETURN(
        const SharedBytes bytes, Call(need.holder, layer, std::nullopt, [&](KvHolder& holder) {
          return holder.ComputeStates(layer, absl::MakeConstSpan(&part, 1), queries);
        }));
    const int64_t num_states = need.num_rows * need.num_spans * group_.num_heads_;
    const int64_t width = static_cast<int64_t>(bytes.size() / sizeof(float)) / num_states;
    states[i] = {bytes, FloatRows(reinterpret_cast<const float*>(bytes.data()), num_states, width)};
  }
  asked.layer = -1;
  return absl::OkStatus();
}

absl::Status LocalExchange::Rank::AwaitHeads(int64_t layer, HeadPhase phase,
                                             std::vector<ReceivedRows>& rows) {
  auto& asked = asked_heads_.Find(layer, static_cast<uint32_t>(phase));
  rows.assign(asked.needs.size(), ReceivedRows());
  for (size_t i = 0; i < asked.needs.size(); ++i) {
    const HeadNeed& need = asked.needs[i];
    const HeadRequest request{.phase = phase, .rank = rank_, .heads = need.heads};
    MOEBIUS_ASSIGN_OR_RETURN(const SharedBytes bytes,
                             Call(need.holder, layer, phase, [&](KvHolder& holder) {
                               return holder.ReadHeads(layer, request);
                             }));
    rows[i] = RowsOf(bytes, need.num_rows);
  }
  asked.layer = -1;
  return absl::OkStatus();
}

LocalExchange::LocalExchange(int32_t num_ranks, const SpanGeometry& geometry, int64_t num_heads)
    : geometry_(geometry), num_heads_(num_heads) {
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, rank));
  }
}
LocalExchange::~LocalExchange() = default;
KvExchange& LocalExchange::rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }
void LocalExchange::Fail(int32_t rank, const absl::Status& status) {
  ranks_[static_cast<size_t>(rank)]->Fail(status);
}

}  // namespace moebius
