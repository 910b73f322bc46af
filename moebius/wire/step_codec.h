// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/attention/step_plan.h"
#include "moebius/base/strong_id.h"
#include "moebius/transport/frame/message.h"

namespace moebius {

// What a lead tells the participants of a step, on the control lane. Term, step and attempt travel
// in the header.
//
// step plan    u32 sessions, then each: u64 id, i64 rows, i64 first position, i64 prompt length,
//              i32 first rank
// ready/ended  u16 length and bytes of EncodeStatus; empty is OK
// step end     u8: 1 commit, 2 abort
// session end  u64 id

inline constexpr uint32_t kMaxStepSessions = 4096;

/// INVALID_ARGUMENT when the attempt passes 32 bits or there are too many sessions.
absl::StatusOr<Message> BuildStepPlan(const StepPlan& plan);
/// Into `plan`, which has passed ValidateStepPlan then; else INVALID_ARGUMENT. Allocates only while
/// that grows.
absl::Status ParseStepPlan(const Message& message, StepPlan* plan);

/// kStepReadyKind or kStepEndedKind: how the plan or end with that key went.
Message BuildStepAnswer(const MessageKey& key, uint64_t term, const absl::Status& status);
absl::Status ParseStepAnswer(const Message& message);

enum class StepEnd : uint8_t { kCommit = 1, kAbort = 2 };
Message BuildStepEnd(const StepPlan& plan, StepEnd end);
absl::StatusOr<StepEnd> ParseStepEnd(const Message& message);

Message BuildSessionEnd(uint64_t term, SessionId session);
absl::StatusOr<SessionId> ParseSessionEnd(const Message& message);

}  // namespace moebius
