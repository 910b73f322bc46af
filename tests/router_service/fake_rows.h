// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "router_service/ports.h"

namespace moebius {

/// A row owner without a model: the logits of a row are a hash of its session's tokens so far, so
/// that an answer depends on its own tokens alone and any mix-up of sessions, positions or chunks
/// changes it. KV is kept as token ids and checked: a step must continue where the last committed
/// one ended.
class FakeRows final : public RowOwnerPort {
 public:
  /// Of whose phases a step tells, where it is wanted.
  static constexpr int32_t kLayers = 2;

  explicit FakeRows(int64_t vocab_size = 97, KvPool pool = {4, 1000, 0})
      : vocab_size_(vocab_size), pool_(pool) {}

  absl::Status RunStep(const StepRequest& request, StepResult* result) override;
  void EndSession(SessionId session) override { kv_.erase(session.value()); }
  KvPool kv_pool() const override;
  bool WaitUntilUsable(absl::Duration timeout) override {
    return wait_until_usable == nullptr || wait_until_usable(timeout);
  }
  std::vector<SessionId> TakeLostSessions() override {
    for (const SessionId session : lost) EndSession(session);
    return std::exchange(lost, {});
  }

  /// Called before each step; a failure fails it.
  std::function<absl::Status(const StepRequest&)> before_step;
  /// Called with the result of each step that succeeds, to add to it.
  std::function<void(StepResult*)> after_step;
  /// What WaitUntilUsable says; nothing is ever missing where it is empty.
  std::function<bool(absl::Duration)> wait_until_usable;
  /// Sessions whose KV is gone, to be told once.
  std::vector<SessionId> lost;
  /// Rows whose token is this one are not finite.
  int32_t poison_token = -1;
  /// A capacity takes two assignments of each row with this token, and sends one elsewhere.
  int32_t crowded_token = -1;
  /// A capacity rejects rows with this token.
  int32_t rejected_token = -1;

  std::vector<StepRequest> steps;  // that succeeded
  size_t num_sessions() const { return kv_.size(); }

 private:
  static void FillPhases(PhaseLog* phases);
  void FillLogits(const std::vector<int32_t>& tokens, float* logits) const;

  const int64_t vocab_size_;
  const KvPool pool_;
  std::map<uint64_t, std::vector<int32_t>> kv_;
};

}  // namespace moebius
