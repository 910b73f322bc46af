// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/step_codec.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

absl::Status Refuse(absl::string_view what, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", why));
}

Message StepMessage(FrameKind kind, const StepPlan& plan, const ByteWriter& out) {
  Message message;
  message.key.kind = kind;
  message.key.step = plan.step;
  message.key.attempt = static_cast<uint32_t>(plan.attempt);
  message.term = plan.term;
  message.metadata = out.Share();
  return message;
}

}  // namespace

absl::StatusOr<Message> BuildStepPlan(const StepPlan& plan) {
  if (plan.attempt > std::numeric_limits<uint32_t>::max()) {
    return Refuse("step plan", absl::StrCat("attempt ", plan.attempt, " passes 32 bits"));
  }
  if (plan.sessions.size() > kMaxStepSessions) {
    return Refuse("step plan",
                  absl::StrCat(plan.sessions.size(), " sessions, the limit is ", kMaxStepSessions));
  }
  ByteWriter out;
  out.Write(static_cast<uint32_t>(plan.sessions.size()));
  for (const SessionRows& rows : plan.sessions) {
    out.Write(rows.session.value());
    out.Write(rows.num_rows);
    out.Write(rows.position_begin);
    out.Write(rows.prompt_length);
    out.Write(rows.first_rank);
    out.Write(static_cast<uint16_t>(rows.method));
    out.Write(static_cast<uint16_t>(rows.ulysses_ranks));
  }
  return StepMessage(kStepPlanKind, plan, out);
}

absl::Status ParseStepPlan(const Message& message, StepPlan* parsed) {
  StepPlan& plan = *parsed;
  plan.sessions.clear();
  plan.num_rows = 0;
  plan.term = message.term;
  plan.step = message.key.step;
  plan.attempt = message.key.attempt;
  ByteReader in(message.metadata.span());
  const uint32_t num_sessions = in.Read<uint32_t>();
  if (num_sessions > kMaxStepSessions) {
    return Refuse("step plan",
                  absl::StrCat(num_sessions, " sessions, the limit is ", kMaxStepSessions));
  }
  for (uint32_t i = 0; i < num_sessions && in.is_complete(); ++i) {
    SessionRows rows;
    rows.session = SessionId(in.Read<uint64_t>());
    rows.row_begin = plan.num_rows;
    rows.num_rows = in.Read<int64_t>();
    rows.position_begin = in.Read<int64_t>();
    rows.prompt_length = in.Read<int64_t>();
    rows.first_rank = in.Read<int32_t>();
    const uint16_t method = in.Read<uint16_t>();
    rows.ulysses_ranks = in.Read<uint16_t>();
    if (method >= kNumAttentionMethods) {
      return Refuse("step plan", absl::StrCat("attention method ", method, " is not known"));
    }
    rows.method = static_cast<AttentionMethod>(method);
    // Below 2^24 rows of at most 4096 sessions: the sum stays below 2^36.
    constexpr int64_t kMaxRows = int64_t{1} << 24;
    if (rows.num_rows < 0 || rows.num_rows > kMaxRows) {
      return Refuse("step plan", absl::StrCat("a session has ", rows.num_rows, " rows"));
    }
    plan.num_rows += rows.num_rows;
    plan.sessions.push_back(rows);
  }
  if (!in.AtEnd() || message.num_rows != 0) {
    return Refuse("step plan", absl::StrCat(message.metadata.size(), " bytes of metadata for ",
                                            num_sessions, " sessions"));
  }
  return ValidateStepPlan(plan);
}

Message BuildStepAnswer(const MessageKey& key, uint64_t term, const absl::Status& status) {
  MOEBIUS_CHECK(key.kind == kStepReadyKind || key.kind == kStepEndedKind);
  ByteWriter out;
  out.WriteText(EncodeStatus(status));
  Message message;
  message.key = key;
  message.term = term;
  message.metadata = out.Share();
  return message;
}

absl::Status ParseStepAnswer(const Message& message) {
  ByteReader in(message.metadata.span());
  const std::string status = in.ReadText(kMaxStatusBytes);
  if (!in.AtEnd() || message.metadata.empty()) {
    return Refuse("step answer", "its length is not its content's");
  }
  return DecodeStatus(status);
}

Message BuildStepEnd(const StepPlan& plan, StepEnd end) {
  ByteWriter out;
  out.Write(static_cast<uint8_t>(end));
  return StepMessage(kStepEndKind, plan, out);
}

absl::StatusOr<StepEnd> ParseStepEnd(const Message& message) {
  ByteReader in(message.metadata.span());
  const uint8_t end = in.Read<uint8_t>();
  if (!in.AtEnd()) return Refuse("step end", "its length is not its content's");
  if (end != static_cast<uint8_t>(StepEnd::kCommit) &&
      end != static_cast<uint8_t>(StepEnd::kAbort)) {
    return Refuse("step end", absl::StrCat(int{end}, " is neither commit nor abort"));
  }
  return static_cast<StepEnd>(end);
}

Message BuildSessionEnd(uint64_t term, SessionId session) {
  ByteWriter out;
  out.Write(session.value());
  Message message;
  message.key.kind = kSessionEndKind;
  message.term = term;
  message.metadata = out.Share();
  return message;
}

absl::StatusOr<SessionId> ParseSessionEnd(const Message& message) {
  ByteReader in(message.metadata.span());
  const uint64_t session = in.Read<uint64_t>();
  if (!in.AtEnd()) return Refuse("session end", "its length is not its content's");
  return SessionId(session);
}

}  // namespace moebius
