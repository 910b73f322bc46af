// SPDX-License-Identifier: Apache-2.0
#include "cli/error_output.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/error.h"
#include "moebius/model/json.h"

namespace moebius {

std::string EscapeControls(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

std::string FormatError(const absl::Status& status) {
  std::string out = absl::StrCat("error: ", EscapeControls(std::string(status.message())));
  const std::string hint = HintOf(status);
  if (!hint.empty()) absl::StrAppend(&out, "\nhint: ", EscapeControls(hint));
  return out;
}

std::string FormatErrorJson(const absl::Status& status) {
  Json json = Json::Object({});
  json.Set("code", Json::String(absl::StatusCodeToString(status.code())));
  json.Set("message", Json::String(std::string(status.message())));
  json.Set("hint", Json::String(HintOf(status)));
  json.Set("retryable", Json::Boolean(IsRetryable(status)));
  return json.ToCanonicalText();
}

void PrintError(const absl::Status& status, OutputForm form) {
  const std::string text =
      form == OutputForm::kJson ? FormatErrorJson(status) : FormatError(status);
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace moebius
