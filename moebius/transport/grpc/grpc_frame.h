// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/transport/link.h"

// The bytes of proto/moebius/api/data/v1/data.proto's Frame, written and read without protobuf, so
// that payload is never copied.

namespace moebius {

/// Tag and length of the only field, at most.
inline constexpr uint64_t kMaxGrpcPrefixBytes = 6;

/// What a frame with this payload is as a gRPC message, at most.
inline uint64_t MaxGrpcMessageBytes(uint64_t payload_bytes) {
  return kMaxGrpcPrefixBytes + kFrameHeaderBytes + payload_bytes;
}

/// The frame as a serialized Frame. The payload's bytes are shared with the buffer, not copied:
/// their owners are kept until gRPC has let go of it. header and payload: < 4 GiB together.
grpc::ByteBuffer EncodeGrpcFrame(WireFrame frame);

/// The frame in a serialized Frame that has exactly the field `frame`, once, in its shortest form.
/// The payload refers to gRPC's memory, in as many pieces as it came in; nothing but the header is
/// copied, and nothing of a size that the sender claims is allocated. INVALID_ARGUMENT for anything
/// else, RESOURCE_EXHAUSTED when the payload is above `max_payload_bytes`.
absl::StatusOr<WireFrame> DecodeGrpcFrame(const grpc::ByteBuffer& buffer,
                                          uint64_t max_payload_bytes);

}  // namespace moebius
