// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/hello.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/transport/frame/byte_codec.h"

namespace moebius {
namespace {

constexpr size_t kMaxReasonBytes = 512;

// A frame of `kind` whose metadata is what was written.
Frame BuildOwn(FrameKind kind, const ByteWriter& out) {
  Message message;
  message.key.kind = kind;
  message.metadata = out.Share();
  return BuildFrame(message, 0, 1);
}

// The payload in one piece; own frames are small.
std::vector<uint8_t> Joined(const Payload& payload) {
  std::vector<uint8_t> bytes(PayloadBytes(payload));
  CopyPayload(payload, bytes.data());
  return bytes;
}

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
  ByteWriter out;
  out.Write(static_cast<uint8_t>(hello.lane));
  out.Write(hello.connection_id);
  out.Write(hello.window_bytes);
  out.Write(hello.max_message_bytes);
  out.Write(hello.max_payload_bytes);
  out.WriteText(hello.name);
  out.WriteText(hello.greeting);
  return BuildOwn(kHelloKind, out);
}

absl::StatusOr<Hello> ParseHello(const FrameHeader& header, const Payload& payload) {
  if (header.kind != kHelloKind) {
    return Refuse(absl::StrCat("the first frame has kind ", header.kind.value()));
  }
  if (header.num_rows != 0 || header.parts != 1) return Refuse("it has rows or parts");
  const std::vector<uint8_t> bytes = Joined(payload);
  ByteReader in(absl::MakeConstSpan(bytes));
  Hello hello;
  const uint8_t lane = in.Read<uint8_t>();
  hello.connection_id = in.Read<uint64_t>();
  hello.window_bytes = in.Read<uint64_t>();
  hello.max_message_bytes = in.Read<uint64_t>();
  hello.max_payload_bytes = in.Read<uint32_t>();
  hello.name = in.ReadText(kMaxNameBytes);
  hello.greeting = in.ReadText(kMaxGreetingBytes);
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

Frame BuildBeat() { return BuildOwn(kBeatKind, ByteWriter()); }

Frame BuildCredit(uint64_t consumed) {
  ByteWriter out;
  out.Write(consumed);
  return BuildOwn(kCreditKind, out);
}

absl::StatusOr<uint64_t> ParseCredit(const FrameHeader& header, const Payload& payload) {
  MOEBIUS_CHECK_EQ(header.kind, kCreditKind);
  const std::vector<uint8_t> bytes = Joined(payload);
  ByteReader in(absl::MakeConstSpan(bytes));
  const uint64_t consumed = in.Read<uint64_t>();
  if (!in.AtEnd()) return absl::InvalidArgumentError("credit: its length is not its content's");
  return consumed;
}

Frame BuildGoodbye(const absl::Status& reason) {
  ByteWriter out;
  out.Write(static_cast<uint32_t>(reason.code()));
  out.WriteText(reason.message().substr(0, kMaxReasonBytes));
  return BuildOwn(kGoodbyeKind, out);
}

absl::Status ParseGoodbye(const FrameHeader& header, const Payload& payload) {
  MOEBIUS_CHECK_EQ(header.kind, kGoodbyeKind);
  const std::vector<uint8_t> bytes = Joined(payload);
  ByteReader in(absl::MakeConstSpan(bytes));
  const uint32_t code = in.Read<uint32_t>();
  std::string message = in.ReadText(kMaxReasonBytes);
  if (!in.AtEnd() || code == 0 || code > 16) return absl::UnavailableError("the peer left");
  // It may reach a log: nothing that a terminal would obey.
  for (char& c : message) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return absl::Status(static_cast<absl::StatusCode>(code), message);
}

}  // namespace moebius
