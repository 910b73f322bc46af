// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/frame/frame_limits.h"

#include <limits>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/transport/frame/frame_header.h"

namespace moebius {
namespace {

constexpr int64_t kMax32 = std::numeric_limits<uint32_t>::max();

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("frame limits: ", field, " is ", value, ", not in [", min, ", ", max, "]"));
}

}  // namespace

absl::StatusOr<FrameLimits> BuildFrameLimits(const FrameLimitsConfig& config) {
  MOEBIUS_RETURN_IF_ERROR(CheckRange("max_rows", config.max_rows, 1, 1 << 24));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("max_row_width", config.max_row_width, 1, 1 << 24));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("max_element_bytes", config.max_element_bytes, 1, 8));
  MOEBIUS_RETURN_IF_ERROR(
      CheckRange("max_metadata_row_bytes", config.max_metadata_row_bytes, 0, 1 << 20));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("num_layers", config.num_layers, 1, 1 << 16));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("num_rounds", config.num_rounds, 1, 1 << 16));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("num_micro_batches", config.num_micro_batches, 1, 1 << 16));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("frame_payload_bytes", config.frame_payload_bytes,
                                     kMessageAlignment, kMaxMessageBytes));
  // Every factor is below 2^24 (2^4 for an element), so the products stay below 2^53.
  const int64_t row_bytes = config.max_rows * config.max_row_width * config.max_element_bytes;
  // Room for the fixed part of a message's metadata beside the rows' share.
  constexpr int64_t kFixedMetadataBytes = 4096;
  const int64_t metadata_bytes =
      kFixedMetadataBytes + config.max_rows * config.max_metadata_row_bytes;
  if (row_bytes + metadata_bytes > static_cast<int64_t>(kMaxMessageBytes)) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(
                        "frame limits: ", config.max_rows, " rows of ", config.max_row_width,
                        " elements make a message of ", row_bytes + metadata_bytes,
                        " bytes, the cap is ", kMaxMessageBytes)),
                    "lower the row budget of a step");
  }
  MOEBIUS_RETURN_IF_ERROR(CheckRange("metadata bytes", metadata_bytes, 0, kMax32));
  FrameLimits limits;
  limits.max_payload_bytes =
      static_cast<uint64_t>(config.frame_payload_bytes) / kMessageAlignment * kMessageAlignment;
  limits.max_message_bytes = static_cast<uint64_t>(row_bytes + metadata_bytes);
  limits.max_metadata_bytes = static_cast<uint64_t>(metadata_bytes);
  limits.max_num_rows = static_cast<uint64_t>(config.max_rows);
  limits.max_row_width = static_cast<uint32_t>(config.max_row_width);
  limits.max_layer = static_cast<uint32_t>(config.num_layers - 1);
  limits.max_round = static_cast<uint32_t>(config.num_rounds - 1);
  limits.max_micro_batch = static_cast<uint32_t>(config.num_micro_batches - 1);
  limits.require_checksum = config.require_checksum;
  return limits;
}

}  // namespace moebius
