// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/frame/frame_header.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/base/hash.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// The bytes "MOEB" read as a little-endian integer.
constexpr uint32_t kMagic = 0x42454f4d;
constexpr uint8_t kChecksumFlag = 1;

// Writes integers little-endian, one after the other, whatever the host's order.
class FieldWriter {
 public:
  explicit FieldWriter(EncodedHeader& out) : out_(out) {}
  template <typename T>
  void Write(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t byte = 0; byte < sizeof(T); ++byte) {
      out_[offset_++] = static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * byte));
    }
  }
  size_t offset() const { return offset_; }

 private:
  EncodedHeader& out_;
  size_t offset_ = 0;
};

class FieldReader {
 public:
  explicit FieldReader(absl::Span<const uint8_t> bytes) : bytes_(bytes) {}
  template <typename T>
  T Read() {
    static_assert(std::is_unsigned_v<T>);
    uint64_t value = 0;
    for (size_t byte = 0; byte < sizeof(T); ++byte) {
      value |= static_cast<uint64_t>(bytes_[offset_++]) << (8 * byte);
    }
    return static_cast<T>(value);
  }
  size_t offset() const { return offset_; }

 private:
  absl::Span<const uint8_t> bytes_;
  size_t offset_ = 0;
};

template <typename... Words>
absl::Status Refuse(const Words&... words) {
  return absl::InvalidArgumentError(absl::StrCat("frame: ", words...));
}

absl::Status CheckMax(absl::string_view field, uint64_t value, uint64_t max) {
  if (value <= max) return absl::OkStatus();
  return Refuse(field, " is ", value, ", the limit is ", max);
}

absl::Status CheckKind(FrameKind kind) {
  const bool own = kind >= kHelloKind && kind <= kGoodbyeKind;
  if (own || IsMessageKind(kind)) return absl::OkStatus();
  return Refuse("kind ", kind.value(), " is unknown");
}

// The message's shape is inside the limits and its size does not wrap.
absl::Status CheckShape(const FrameHeader& header, const FrameLimits& limits) {
  MOEBIUS_RETURN_IF_ERROR(CheckMax("num_rows", header.num_rows, limits.max_num_rows));
  MOEBIUS_RETURN_IF_ERROR(CheckMax("row_width", header.row_width, limits.max_row_width));
  MOEBIUS_RETURN_IF_ERROR(
      CheckMax("metadata_bytes", header.metadata_bytes, limits.max_metadata_bytes));
  if (header.metadata_bytes % kMessageAlignment != 0) {
    return Refuse("metadata_bytes is ", header.metadata_bytes, ", not a multiple of ",
                  kMessageAlignment);
  }
  const uint64_t element_bytes = DTypeBytes(header.dtype);
  const bool is_of_files_only = header.dtype == DType::kF8E4M3;
  if (is_of_files_only || (element_bytes == 0 && header.dtype != DType::kUnspecified)) {
    return Refuse("dtype ", static_cast<int>(header.dtype), " is unknown");
  }
  if (header.num_rows > 0 && (element_bytes == 0 || header.row_width == 0)) {
    return Refuse(header.num_rows, " rows have no dtype or no width");
  }
  // row_width · element_bytes < 2^35, so only the product with num_rows can wrap: divide instead.
  const uint64_t row_bytes = header.row_width * element_bytes;
  const uint64_t room = limits.max_message_bytes -
                        std::min<uint64_t>(header.metadata_bytes, limits.max_message_bytes);
  if (row_bytes > 0 && header.num_rows > room / row_bytes) {
    return Refuse(header.num_rows, " rows of ", row_bytes, " bytes and ", header.metadata_bytes,
                  " bytes of metadata pass the message limit of ", limits.max_message_bytes);
  }
  return CheckMax("message bytes", header.metadata_bytes, limits.max_message_bytes);
}

// The payload is exactly what the shape and (part, parts) say.
absl::Status CheckPart(const FrameHeader& header, const FrameLimits& limits) {
  if (header.part >= header.parts) {
    return Refuse("part ", header.part, " of ", header.parts, " parts");
  }
  const uint64_t message_bytes = MessageBytes(header);
  const uint64_t part_bytes = PartBytes(message_bytes, header.parts);
  // part_bytes <= message_bytes + 64 and parts < 2^32: no wrap below 2^62.
  if (header.parts > 1 && part_bytes * (header.parts - 1) >= message_bytes) {
    return Refuse("a message of ", message_bytes, " bytes has no ", header.parts, " parts");
  }
  const uint64_t expected = std::min(part_bytes, message_bytes - part_bytes * header.part);
  if (header.payload_bytes != expected) {
    return Refuse("payload_bytes is ", header.payload_bytes, ", part ", header.part, " of ",
                  header.parts, " of this shape has ", expected);
  }
  return CheckMax("payload_bytes", header.payload_bytes, limits.max_payload_bytes);
}

}  // namespace

uint64_t MessageBytes(const FrameHeader& header) {
  return header.metadata_bytes + header.num_rows * header.row_width * DTypeBytes(header.dtype);
}

uint64_t PartBytes(uint64_t message_bytes, uint32_t parts) {
  const uint64_t part = message_bytes / parts + (message_bytes % parts != 0 ? 1 : 0);
  return (part + kMessageAlignment - 1) / kMessageAlignment * kMessageAlignment;
}

uint32_t NumParts(uint64_t message_bytes, uint64_t max_payload_bytes) {
  MOEBIUS_CHECK(max_payload_bytes > 0 && max_payload_bytes % kMessageAlignment == 0);
  if (message_bytes == 0) return 1;
  return static_cast<uint32_t>((message_bytes + max_payload_bytes - 1) / max_payload_bytes);
}

absl::Status ValidateFrameHeader(const FrameHeader& header, const FrameLimits& limits) {
  MOEBIUS_RETURN_IF_ERROR(CheckKind(header.kind));
  if (header.incarnation == 0) return Refuse("incarnation is 0");
  MOEBIUS_RETURN_IF_ERROR(CheckMax("layer", header.layer, limits.max_layer));
  MOEBIUS_RETURN_IF_ERROR(CheckMax("round", header.round, limits.max_round));
  MOEBIUS_RETURN_IF_ERROR(CheckMax("micro_batch", header.micro_batch, limits.max_micro_batch));
  MOEBIUS_RETURN_IF_ERROR(CheckShape(header, limits));
  MOEBIUS_RETURN_IF_ERROR(CheckPart(header, limits));
  if (!header.has_checksum) {
    if (header.checksum != 0) return Refuse("a checksum without its flag");
    if (limits.require_checksum) return Refuse("no checksum where one is required");
  }
  return absl::OkStatus();
}

EncodedHeader EncodeFrameHeader(const FrameHeader& header) {
  EncodedHeader bytes{};
  FieldWriter out(bytes);
  out.Write(kMagic);
  out.Write(kWireVersion);
  out.Write(header.kind.value());
  out.Write(header.incarnation);
  out.Write(header.term);
  out.Write(header.step);
  out.Write(header.epoch);
  out.Write(header.attempt);
  out.Write(header.micro_batch);
  out.Write(header.layer);
  out.Write(header.round);
  out.Write(header.part);
  out.Write(header.parts);
  out.Write(header.num_rows);
  out.Write(header.row_width);
  out.Write(static_cast<uint8_t>(header.dtype));
  out.Write(header.has_checksum ? kChecksumFlag : uint8_t{0});
  out.Write(uint16_t{0});
  out.Write(header.metadata_bytes);
  out.Write(header.budget_ms);
  out.Write(header.payload_bytes);
  out.Write(header.checksum);
  out.Write(header.sequence);
  out.Write(uint64_t{0});
  out.Write(uint64_t{0});
  MOEBIUS_CHECK_EQ(out.offset(), kFrameHeaderBytes);
  return bytes;
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::Span<const uint8_t> bytes,
                                              const FrameLimits& limits) {
  if (bytes.size() != kFrameHeaderBytes) {
    return Refuse("the header has ", bytes.size(), " bytes, not ", kFrameHeaderBytes);
  }
  FieldReader in(bytes);
  const uint32_t magic = in.Read<uint32_t>();
  if (magic != kMagic) return Refuse("starts with ", absl::StrFormat("%08x", magic));
  const uint16_t version = in.Read<uint16_t>();
  if (version != kWireVersion) {
    return Refuse("wire version ", version, ", this process speaks ", kWireVersion);
  }
  FrameHeader header;
  header.kind = FrameKind(in.Read<uint16_t>());
  header.incarnation = in.Read<uint64_t>();
  header.term = in.Read<uint64_t>();
  header.step = in.Read<uint64_t>();
  header.epoch = in.Read<uint64_t>();
  header.attempt = in.Read<uint32_t>();
  header.micro_batch = in.Read<uint32_t>();
  header.layer = in.Read<uint32_t>();
  header.round = in.Read<uint32_t>();
  header.part = in.Read<uint32_t>();
  header.parts = in.Read<uint32_t>();
  header.num_rows = in.Read<uint64_t>();
  header.row_width = in.Read<uint32_t>();
  header.dtype = static_cast<DType>(in.Read<uint8_t>());
  const uint8_t flags = in.Read<uint8_t>();
  header.has_checksum = (flags & kChecksumFlag) != 0;
  uint64_t reserved = in.Read<uint16_t>();
  header.metadata_bytes = in.Read<uint32_t>();
  header.budget_ms = in.Read<uint32_t>();
  header.payload_bytes = in.Read<uint64_t>();
  header.checksum = in.Read<uint64_t>();
  header.sequence = in.Read<uint64_t>();
  reserved |= in.Read<uint64_t>();
  reserved |= in.Read<uint64_t>();
  MOEBIUS_CHECK_EQ(in.offset(), kFrameHeaderBytes);
  if ((flags & ~kChecksumFlag) != 0) return Refuse("flags ", int{flags}, " are unknown");
  if (reserved != 0) return Refuse("a reserved byte is not 0");
  MOEBIUS_RETURN_IF_ERROR(ValidateFrameHeader(header, limits));
  return header;
}

uint64_t HashPayload(const Payload& payload) {
  if (payload.empty()) return Hash64(nullptr, 0);
  if (payload.size() == 1) return Hash64(payload[0].data(), payload[0].size());
  StreamingHash64 hash;
  for (const SharedBytes& piece : payload) hash.Update(piece.data(), piece.size());
  return hash.Digest();
}

uint64_t FrameChecksum(const FrameHeader& header, uint64_t payload_hash) {
  FrameHeader hashed = header;
  hashed.has_checksum = true;
  hashed.checksum = payload_hash;
  const EncodedHeader bytes = EncodeFrameHeader(hashed);
  return Hash64(bytes.data(), bytes.size());
}

absl::Status VerifyPayload(const FrameHeader& header, const Payload& payload) {
  const size_t bytes = PayloadBytes(payload);
  if (bytes != header.payload_bytes) {
    return Refuse("the header says ", header.payload_bytes, " bytes of payload, ", bytes, " came");
  }
  if (header.has_checksum && FrameChecksum(header, HashPayload(payload)) != header.checksum) {
    return absl::DataLossError("frame: the checksum differs from the bytes");
  }
  return absl::OkStatus();
}

}  // namespace moebius
