// SPDX-License-Identifier: Apache-2.0
#include "cli/error_output.h"

#include <cstdio>

#include "moebius/base/error.h"
#include "moebius/model/json.h"

namespace moebius {

std::string FormatErrorJson(const absl::Status& status) {
  Json json = Json::Object({});
  json.Set("code", Json::String(absl::StatusCodeToString(status.code())));
  json.Set("message", Json::String(std::string(status.message())));
  json.Set("hint", Json::String(HintOf(status)));
  json.Set("retryable", Json::Boolean(IsRetryable(status)));
  return json.ToCanonicalText();
}

ExitCode ExitCodeOfOpen(const absl::Status& status) {
  if (IsUsageError(status)) return kExitUsage;
  return IsHostError(status) || absl::IsResourceExhausted(status) ? kExitHost : kExitModel;
}

void PrintError(const absl::Status& status, OutputForm form) {
  const std::string text =
      form == OutputForm::kJson ? FormatErrorJson(status) : FormatError(status);
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace moebius
