// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/probe_codec.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "moebius/base/check.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {

Message BuildProbe(uint64_t number, uint64_t num_bytes) {
  MOEBIUS_CHECK_LE(num_bytes, kMaxProbeBytes);
  Message message;
  message.key.kind = kProbeKind;
  message.key.step = number;
  BytesBuilder zeros(num_bytes);
  if (num_bytes > 0) std::memset(zeros.data(), 0, num_bytes);
  message.metadata = std::move(zeros).Share();
  return message;
}

Message BuildProbeReply(const Message& probe, double kernel_flops) {
  MOEBIUS_DCHECK(std::isfinite(kernel_flops) && kernel_flops >= 0);
  ByteWriter out;
  out.Write(kernel_flops);
  Message message;
  message.key = probe.key;
  message.key.kind = kProbeReplyKind;
  message.metadata = out.Share();
  return message;
}

absl::StatusOr<double> ParseProbeReply(const Message& reply) {
  ByteReader in(reply.metadata.span());
  const auto kernel_flops = in.Read<double>();
  if (!in.AtEnd() || reply.num_rows != 0) {
    return absl::InvalidArgumentError("probe reply: its length is not its content's");
  }
  if (!std::isfinite(kernel_flops) || kernel_flops < 0) {
    return absl::InvalidArgumentError("probe reply: a rate that cannot be");
  }
  return kernel_flops;
}

}  // namespace moebius
