// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/error.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/utf8.h"

namespace moebius {
namespace {

constexpr char kHintUrl[] = "moebius/hint";
constexpr char kUsageUrl[] = "moebius/usage";
constexpr char kHostUrl[] = "moebius/host";

absl::Status Mark(absl::Status status, absl::string_view url) {
  if (!status.ok()) status.SetPayload(url, absl::Cord("1"));
  return status;
}

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

absl::Status AsUsageError(absl::Status status) { return Mark(std::move(status), kUsageUrl); }

bool IsUsageError(const absl::Status& status) { return status.GetPayload(kUsageUrl).has_value(); }

absl::Status AsHostError(absl::Status status) { return Mark(std::move(status), kHostUrl); }

bool IsHostError(const absl::Status& status) { return status.GetPayload(kHostUrl).has_value(); }

bool IsRetryable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
         absl::IsAborted(status);
}

std::string EscapeControls(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  absl::string_view rest = text;
  while (!rest.empty()) {
    const size_t length = Utf8CharacterBytes(rest);
    const auto byte = static_cast<unsigned char>(rest[0]);
    const bool is_control = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F;
    // U+0080 to U+009F: terminals take them for escape sequences.
    const bool is_c1 = length == 2 && byte == 0xC2 && static_cast<unsigned char>(rest[1]) < 0xA0;
    const size_t taken = std::max<size_t>(length, 1);
    if (length == 0 || is_control || is_c1) {
      for (const char c : rest.substr(0, taken)) {
        absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
      }
    } else {
      absl::StrAppend(&out, rest.substr(0, taken));
    }
    rest.remove_prefix(taken);
  }
  return out;
}

std::string FormatError(const absl::Status& status) {
  std::string out = absl::StrCat("error: ", EscapeControls(std::string(status.message())));
  const std::string hint = HintOf(status);
  if (!hint.empty()) absl::StrAppend(&out, "\nhint: ", EscapeControls(hint));
  return out;
}

}  // namespace moebius
