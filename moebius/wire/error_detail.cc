// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/error_detail.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/stubs/logging.h"

#include "moebius/base/error.h"
#include "proto/moebius/api/error/v1/error.pb.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::error::v1;

constexpr char kDetailUrl[] = "moebius/detail";
constexpr size_t kMaxTextBytes = 2048;
constexpr int kMaxMissingExperts = 1024;
constexpr absl::string_view kNotHeld = "NOT_HELD: ";

// At most kMaxTextBytes, never half of a UTF-8 character: the bytes of one that was cut go too.
std::string Cut(absl::string_view text) {
  if (text.size() <= kMaxTextBytes) return std::string(text);
  size_t size = kMaxTextBytes;
  while (size > 0 && (static_cast<uint8_t>(text[size]) & 0xc0) == 0x80) --size;
  return std::string(text.substr(0, size));
}

// Texts of others reach logs and terminals: nothing that those would obey.
std::string Printable(const std::string& text) {
  std::string out = Cut(text);
  for (char& c : out) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) != 0 && c != '\n') c = '?';
  }
  return out;
}

pb::ErrorDetail DetailProto(const ErrorDetail& detail) {
  pb::ErrorDetail out;
  if (detail.epoch_seen.has_value()) out.set_epoch_seen(*detail.epoch_seen);
  if (detail.epoch_needed.has_value()) out.set_epoch_needed(*detail.epoch_needed);
  for (const int32_t id : detail.missing_experts) {
    if (out.missing_experts_size() == kMaxMissingExperts) break;
    out.add_missing_experts(id);
  }
  out.set_host(Cut(detail.host));
  out.set_retryable(detail.retryable.value_or(false));
  return out;
}

ErrorDetail DetailFrom(const pb::ErrorDetail& in) {
  ErrorDetail detail;
  detail.retryable = in.retryable();
  if (in.has_epoch_seen()) detail.epoch_seen = in.epoch_seen();
  if (in.has_epoch_needed()) detail.epoch_needed = in.epoch_needed();
  const int count = std::min(in.missing_experts_size(), kMaxMissingExperts);
  detail.missing_experts.assign(in.missing_experts().begin(), in.missing_experts().begin() + count);
  detail.host = Printable(in.host());
  return detail;
}

}  // namespace

absl::Status WithDetail(absl::Status status, const ErrorDetail& detail) {
  if (status.ok()) return status;
  ErrorDetail complete = detail;
  if (!complete.retryable.has_value()) complete.retryable = IsRetryable(status);
  status.SetPayload(kDetailUrl, absl::Cord(DetailProto(complete).SerializeAsString()));
  return status;
}

ErrorDetail DetailOf(const absl::Status& status) {
  ErrorDetail detail;
  if (status.ok()) return detail;
  pb::ErrorDetail in;
  const auto payload = status.GetPayload(kDetailUrl);
  if (payload.has_value() && in.ParseFromString(std::string(*payload))) return DetailFrom(in);
  detail.retryable = IsRetryable(status);
  return detail;
}

absl::Status NotHeldError(const std::vector<int32_t>& missing_experts, uint64_t epoch_seen) {
  ErrorDetail detail;
  detail.retryable = true;
  detail.epoch_seen = epoch_seen;
  detail.missing_experts = missing_experts;
  return WithDetail(absl::FailedPreconditionError(
                        absl::StrCat(kNotHeld, "experts ", absl::StrJoin(missing_experts, ", "))),
                    detail);
}

bool IsNotHeld(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) && absl::StartsWith(status.message(), kNotHeld);
}

std::string EncodeStatus(const absl::Status& status) {
  if (status.ok()) return std::string();
  pb::ErrorDetail out = DetailProto(DetailOf(status));
  out.set_code(static_cast<uint32_t>(status.code()));
  out.set_message(Cut(status.message()));
  out.set_hint(Cut(HintOf(status)));
  return out.SerializeAsString();
}

absl::Status DecodeStatus(absl::string_view bytes) {
  if (bytes.empty()) return absl::OkStatus();
  // protobuf logs bytes that are no UTF-8, as often as somebody sends them.
  const google::protobuf::LogSilencer silence;
  pb::ErrorDetail in;
  if (bytes.size() > kMaxStatusBytes ||
      !in.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::UnknownError("the peer failed and its reason is unreadable");
  }
  const bool is_known = in.code() >= 1 && in.code() <= 16;
  const auto code =
      is_known ? static_cast<absl::StatusCode>(in.code()) : absl::StatusCode::kUnknown;
  absl::Status status = WithDetail(absl::Status(code, Printable(in.message())), DetailFrom(in));
  return in.hint().empty() ? status : WithHint(std::move(status), Printable(in.hint()));
}

}  // namespace moebius
