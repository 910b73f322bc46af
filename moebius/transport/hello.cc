// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/hello.h"

#include <type_traits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr size_t kMaxReasonBytes = 512;

class Writer {
 public:
  template <typename T>
  void Integer(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t byte = 0; byte < sizeof(T); ++byte) {
      bytes_.push_back(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * byte)));
    }
  }
  void Text(absl::string_view text) {
    Integer(static_cast<uint16_t>(text.size()));
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  // A frame of `kind` whose metadata is what was written, padded.
  Frame Build(FrameKind kind) {
    Message message;
    message.key.kind = kind;
    message.metadata = SharedBytes::Copy(absl::MakeConstSpan(bytes_));
    return BuildFrame(message, 0, 1);
  }

 private:
  std::vector<uint8_t> bytes_;
};

// Reads what Writer wrote; anything beyond the end reads as 0 and is remembered as a failure.
class Reader {
 public:
  explicit Reader(const Payload& payload) : bytes_(PayloadBytes(payload)) {
    CopyPayload(payload, bytes_.data());
  }
  template <typename T>
  T Integer() {
    if (!Has(sizeof(T))) return 0;
    uint64_t value = 0;
    for (size_t byte = 0; byte < sizeof(T); ++byte) {
      value |= static_cast<uint64_t>(bytes_[offset_++]) << (8 * byte);
    }
    return static_cast<T>(value);
  }
  std::string Text(size_t max_bytes) {
    const size_t size = Integer<uint16_t>();
    if (size > max_bytes || !Has(size)) {
      complete_ = false;
      return std::string();
    }
    const std::string text(bytes_.begin() + static_cast<int64_t>(offset_),
                           bytes_.begin() + static_cast<int64_t>(offset_ + size));
    offset_ += size;
    return text;
  }
  // True when everything was there and what is left is zero padding.
  bool AtEnd() const {
    if (!complete_ || bytes_.size() - offset_ >= kMessageAlignment) return false;
    for (size_t i = offset_; i < bytes_.size(); ++i) {
      if (bytes_[i] != 0) return false;
    }
    return true;
  }

 private:
  bool Has(size_t size) {
    complete_ = complete_ && size <= bytes_.size() - offset_;
    return complete_;
  }
  std::vector<uint8_t> bytes_;
  size_t offset_ = 0;
  bool complete_ = true;
};

absl::Status Refuse(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("hello: ", why));
}

bool IsPrintable(absl::string_view text) {
  for (const char c : text) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

}  // namespace

Frame BuildHello(const Hello& hello) {
  MOEBIUS_CHECK_LE(hello.name.size(), kMaxNameBytes);
  MOEBIUS_CHECK_LE(hello.greeting.size(), kMaxGreetingBytes);
  Writer out;
  out.Integer(static_cast<uint8_t>(hello.lane));
  out.Integer(hello.connection_id);
  out.Integer(hello.window_bytes);
  out.Integer(hello.max_message_bytes);
  out.Integer(hello.max_payload_bytes);
  out.Text(hello.name);
  out.Text(hello.greeting);
  return out.Build(kHelloKind);
}

absl::StatusOr<Hello> ParseHello(const FrameHeader& header, const Payload& payload) {
  if (header.kind != kHelloKind) {
    return Refuse(absl::StrCat("the first frame has kind ", header.kind.value()));
  }
  if (header.num_rows != 0 || header.parts != 1) return Refuse("it has rows or parts");
  Reader in(payload);
  Hello hello;
  const uint8_t lane = in.Integer<uint8_t>();
  hello.connection_id = in.Integer<uint64_t>();
  hello.window_bytes = in.Integer<uint64_t>();
  hello.max_message_bytes = in.Integer<uint64_t>();
  hello.max_payload_bytes = in.Integer<uint32_t>();
  hello.name = in.Text(kMaxNameBytes);
  hello.greeting = in.Text(kMaxGreetingBytes);
  if (!in.AtEnd()) return Refuse("its length is not its content's");
  if (lane >= kNumLanes) return Refuse(absl::StrCat("lane ", lane, " is unknown"));
  hello.lane = static_cast<Lane>(lane);
  if (hello.connection_id == 0) return Refuse("connection 0");
  if (!IsPrintable(hello.name)) return Refuse("its name has unprintable bytes");
  if (hello.max_payload_bytes == 0 || hello.max_payload_bytes % kMessageAlignment != 0) {
    return Refuse(absl::StrCat("frames of ", hello.max_payload_bytes, " bytes"));
  }
  if (hello.window_bytes / 2 < WindowCost(hello.max_payload_bytes)) {
    return Refuse(absl::StrCat("a window of ", hello.window_bytes, " bytes for frames of ",
                               hello.max_payload_bytes));
  }
  return hello;
}

Frame BuildBeat() { return Writer().Build(kBeatKind); }

Frame BuildCredit(uint64_t consumed) {
  Writer out;
  out.Integer(consumed);
  return out.Build(kCreditKind);
}

absl::StatusOr<uint64_t> ParseCredit(const FrameHeader& header, const Payload& payload) {
  MOEBIUS_CHECK_EQ(header.kind, kCreditKind);
  Reader in(payload);
  const uint64_t consumed = in.Integer<uint64_t>();
  if (!in.AtEnd()) return absl::InvalidArgumentError("credit: its length is not its content's");
  return consumed;
}

Frame BuildGoodbye(const absl::Status& reason) {
  Writer out;
  out.Integer(static_cast<uint32_t>(reason.code()));
  out.Text(reason.message().substr(0, kMaxReasonBytes));
  return out.Build(kGoodbyeKind);
}

absl::Status ParseGoodbye(const FrameHeader& header, const Payload& payload) {
  MOEBIUS_CHECK_EQ(header.kind, kGoodbyeKind);
  Reader in(payload);
  const uint32_t code = in.Integer<uint32_t>();
  std::string message = in.Text(kMaxReasonBytes);
  if (!in.AtEnd() || code == 0 || code > 16) return absl::UnavailableError("the peer left");
  // It may reach a log: nothing that a terminal would obey.
  for (char& c : message) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

}  // namespace moebius
