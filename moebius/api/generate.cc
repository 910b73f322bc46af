// SPDX-License-Identifier: Apache-2.0
#include "moebius/api/generate.h"

#include "moebius/base/check.h"

namespace moebius {

absl::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
  }
  internal::CheckFailed(__FILE__, __LINE__, "unknown finish reason");
}

bool AsksTheSame(const GenerateRequest& a, const GenerateRequest& b) {
  GenerateRequest other = b;
  other.deadline = a.deadline;
  other.priority = a.priority;
  other.traceparent = a.traceparent;
  other.caller = a.caller;
  return a == other;
}

}  // namespace moebius
