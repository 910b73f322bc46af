// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "attention_service/kv_exchange.h"
#include "attention_service/peer_answers.h"
#include "moebius/attention/shard.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// What a rank has asked of others since its start.
struct ExchangeFigures {
  int64_t questions = 0;       // messages sent
  int64_t question_bytes = 0;  // of their metadata, padded, and rows
  int64_t answers = 0;         // messages received
  int64_t answer_bytes = 0;
  int64_t parked = 0;  // others' questions that wait here now
};

/// The exchange over a transport: each rank asks the owner of what it needs. Room for an answer is
/// reserved before the question leaves, so an answer never waits for room; questions go over the
/// decode lane, keys and values over the bulk lane.
///
/// Bytes of a layer: docs/attention_ranks.md.
///
/// Thread-safe; the calls of KvExchange come from one thread.
class PeerExchange final : public KvExchange {
 public:
  struct Options {
    Shard shard;
    ExchangeShape shape;
    /// How long an answer may take before its rank counts as lost for the step.
    absl::Duration timeout = absl::Seconds(30);
    /// How long an Ask waits for a rank that is not connected: ranks find one another while the
    /// router already sends steps.
    absl::Duration connect_timeout = absl::Seconds(2);
  };

  /// `transport` outlives the exchange.
  PeerExchange(const Options& options, Transport& transport, const Clock& clock);
  ~PeerExchange() override;

  /// Makes the standing room for others' questions.
  absl::Status Start() { return answers_.Start(); }
  /// Where a rank is reached now; nothing when it is gone.
  void SetPeer(int32_t rank, std::optional<PeerId> peer);
  /// Ends the waits of the open step if it is this one, with `reason`.
  void Cancel(const StepKey& step, const absl::Status& reason);
  /// The same whichever step is open.
  void CancelAny(const absl::Status& reason);

  void Attach(KvHolder* holder) override { answers_.Attach(holder); }
  void BeginStep(const StepPlan& plan) override;
  void RefuseStep(const StepPlan& plan, const absl::Status& status) override {
    answers_.RefuseStep(plan, status);
  }
  void Publish(int64_t layer) override { answers_.Publish(layer); }
  void PublishHeads(int64_t layer, HeadPhase phase) override {
    answers_.PublishHeads(layer, phase);
  }
  void CloseHeads() override { answers_.CloseHeads(); }
  void EndStep() override;

  absl::Status AskSpans(int64_t layer, uint32_t round, absl::Span<const KvSpanNeed> needs,
                        HeadRange kv_heads) override;
  absl::Status AwaitSpans(int64_t layer, uint32_t round, std::vector<ReceivedRows>& rows) override;
  absl::Status AskStates(int64_t layer, uint32_t round, absl::Span<const StateNeed> needs,
                         Bf16Rows queries) override;
  absl::Status AwaitStates(int64_t layer, uint32_t round,
                           std::vector<ReceivedStates>& states) override;
  absl::Status AskHeads(int64_t layer, HeadPhase phase, absl::Span<const HeadNeed> needs) override;
  absl::Status AwaitHeads(int64_t layer, HeadPhase phase, std::vector<ReceivedRows>& rows) override;

  ExchangeFigures figures() const;

 private:
  struct State;
  struct Ask;

  absl::StatusOr<PeerId> FindPeer(int32_t rank);
  int64_t NumPositions(const KvSpanNeed& need) const;
  absl::Status SplitRows(const Ask& ask, int64_t message_width,
                         std::vector<ReceivedRows>& rows) const;
  MessageKey KeyOf(FrameKind kind, int64_t layer, uint32_t round) const;
  absl::Status Question(Message question, FrameKind answer_kind, uint64_t max_answer_bytes,
                        int32_t holder, Ask& ask);
  absl::StatusOr<std::unique_ptr<Ask>> Await(FrameKind kind, int64_t layer, uint32_t round);

  const Options options_;
  Transport& transport_;
  const Clock& clock_;
  std::shared_ptr<State> state_;                     // outlives deliveries that come late
  StepPlan plan_;                                    // of the open step
  std::map<MessageKey, std::unique_ptr<Ask>> asks_;  // by the answer's key
  PeerAnswers answers_;
};

}  // namespace moebius
