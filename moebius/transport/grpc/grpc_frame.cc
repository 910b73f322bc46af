// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_frame.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"

namespace moebius {
namespace {

// Field 1, length-delimited.
constexpr uint8_t kFrameTag = (1 << 3) | 2;
constexpr uint64_t kMaxFrameBytes = UINT32_MAX;

size_t WriteVarint(uint64_t value, uint8_t* out) {
  size_t size = 0;
  for (; value >= 0x80; value >>= 7) out[size++] = static_cast<uint8_t>(value | 0x80);
  out[size++] = static_cast<uint8_t>(value);
  return size;
}

// A slice that shares the piece's bytes.
grpc::Slice Share(SharedBytes piece) {
  auto* owner = new SharedBytes(std::move(piece));
  return grpc::Slice(
      const_cast<uint8_t*>(owner->data()), owner->size(),
      [](void* data) { delete static_cast<SharedBytes*>(data); }, owner);
}

// Reads from the front of a list of slices.
class SliceReader {
 public:
  explicit SliceReader(const std::vector<grpc::Slice>& slices) : slices_(slices) { Skip(0); }

  bool Read(uint8_t* out, size_t size) {
    while (size > 0) {
      if (index_ == slices_.size()) return false;
      const size_t count = std::min(size, slices_[index_].size() - offset_);
      std::memcpy(out, slices_[index_].begin() + offset_, count);
      out += count;
      size -= count;
      Skip(count);
    }
    return true;
  }

  // All that is left, as pieces that share `owner`.
  Payload Rest(const std::shared_ptr<const void>& owner) {
    Payload rest;
    while (index_ < slices_.size()) {
      const grpc::Slice& slice = slices_[index_];
      rest.push_back(SharedBytes(owner, slice.begin() + offset_, slice.size() - offset_));
      Skip(slice.size() - offset_);
    }
    return rest;
  }

 private:
  // Leaves the reader on a byte, or at the end.
  void Skip(size_t count) {
    offset_ += count;
    while (index_ < slices_.size() && offset_ == slices_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
  }

  const std::vector<grpc::Slice>& slices_;
  size_t index_ = 0;
  size_t offset_ = 0;
};

absl::Status Refuse(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("stream message: ", why));
}

}  // namespace

grpc::ByteBuffer EncodeGrpcFrame(WireFrame frame) {
  const uint64_t payload_bytes = PayloadBytes(frame.payload);
  MOEBIUS_CHECK_LE(payload_bytes, kMaxFrameBytes - kFrameHeaderBytes);
  std::array<uint8_t, kMaxGrpcPrefixBytes + kFrameHeaderBytes> front;
  front[0] = kFrameTag;
  size_t front_size = 1 + WriteVarint(kFrameHeaderBytes + payload_bytes, &front[1]);
  std::memcpy(&front[front_size], frame.header.data(), kFrameHeaderBytes);
  front_size += kFrameHeaderBytes;
  absl::InlinedVector<grpc::Slice, 4> slices;
  slices.emplace_back(front.data(), front_size);
  for (SharedBytes& piece : frame.payload) {
    if (!piece.empty()) slices.push_back(Share(std::move(piece)));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<WireFrame> DecodeGrpcFrame(const grpc::ByteBuffer& buffer,
                                          uint64_t max_payload_bytes) {
  const uint64_t message_bytes = buffer.Length();
  if (message_bytes > MaxGrpcMessageBytes(max_payload_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat("stream message: it has ", message_bytes,
                                                     " bytes, the limit is ",
                                                     MaxGrpcMessageBytes(max_payload_bytes)));
  }
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  // Fails only for compressed messages that do not unpack; compression is never offered.
  if (!buffer.Dump(slices.get()).ok()) return Refuse("it cannot be read");
  SliceReader reader(*slices);
  uint8_t byte = 0;
  if (!reader.Read(&byte, 1)) return Refuse("it is empty");
  if (byte != kFrameTag) return Refuse(absl::StrCat("its first byte is ", byte, ", not field 1"));
  uint64_t frame_bytes = 0;
  size_t prefix_bytes = 1;
  do {
    if (prefix_bytes == kMaxGrpcPrefixBytes) return Refuse("its length is too long");
    if (!reader.Read(&byte, 1)) return Refuse("it ends inside its length");
    frame_bytes |= uint64_t{byte & 0x7fu} << (7 * (prefix_bytes - 1));
    ++prefix_bytes;
  } while ((byte & 0x80) != 0);
  if (byte == 0 && prefix_bytes > 2) return Refuse("its length is not in its shortest form");
  if (frame_bytes != message_bytes - prefix_bytes) {
    return Refuse(
        absl::StrCat("it claims ", frame_bytes, " bytes and has ", message_bytes - prefix_bytes));
  }
  if (frame_bytes < kFrameHeaderBytes) {
    return Refuse(absl::StrCat("a frame of ", frame_bytes, " bytes is shorter than a header"));
  }
  if (frame_bytes - kFrameHeaderBytes > max_payload_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("stream message: a payload of ",
                                                     frame_bytes - kFrameHeaderBytes,
                                                     " bytes, the limit is ", max_payload_bytes));
  }
  WireFrame frame;
  MOEBIUS_CHECK(reader.Read(frame.header.data(), kFrameHeaderBytes));
  frame.payload = reader.Rest(slices);
  return frame;
}

}  // namespace moebius
