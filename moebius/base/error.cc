// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

constexpr char kHintUrl[] = "moebius/hint";

}  // namespace

absl::Status WithHint(absl::Status status, absl::string_view hint) {
  if (!status.ok()) status.SetPayload(kHintUrl, absl::Cord(hint));
  return status;
}

std::string HintOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kHintUrl);
  return payload.has_value() ? std::string(*payload) : std::string();
}

absl::Status WithContext(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status result(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&result](absl::string_view url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  return result;
}

bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsAborted(status);
}

}  // namespace moebius
