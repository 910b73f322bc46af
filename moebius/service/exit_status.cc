// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/exit_status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

constexpr char kExitUrl[] = "moebius/exit_code";

}  // namespace

absl::Status WithExitCode(absl::Status status, ExitCode code) {
  if (!status.ok() && !status.GetPayload(kExitUrl).has_value()) {
    status.SetPayload(kExitUrl, absl::Cord(absl::StrCat(static_cast<int>(code))));
  }
  return status;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  int code = kExitHost;
  if (const auto payload = status.GetPayload(kExitUrl); payload.has_value()) {
    if (!absl::SimpleAtoi(std::string(*payload), &code)) code = kExitHost;
  }
  return static_cast<ExitCode>(code);
}

}  // namespace moebius
