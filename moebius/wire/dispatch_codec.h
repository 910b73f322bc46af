// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "moebius/routing/dispatch.h"
#include "moebius/tensor/rows.h"
#include "moebius/transport/frame/message.h"
#include "moebius/wire/row_codec.h"

namespace moebius {

// A dispatch on the wire: one row owner's rows for one expert service in one layer.
//
// rows      [R, hidden] bf16, only those that the service gets, in the order of row_ids
// metadata  u32 R, u32 N, u16 assignments[R], u16 expert_ids[N], f32 weights[N], u8 joins[N]
//
// Row ids do not travel: at the service row i of the message is row i. Epoch is in the header.

/// Bytes of the metadata of such a dispatch, without padding.
constexpr uint64_t DispatchMetadataBytes(uint64_t num_rows, uint64_t num_assignments) {
  return 8 + 2 * num_rows + 7 * num_assignments;
}

/// `rows` are those that dispatch.row_ids index; they are copied once, gathered. `key` has the kind
/// kDispatchKind, step, attempt, micro-batch and layer. The dispatch must be valid.
Message BuildDispatch(const MessageKey& key, const ServiceDispatch& dispatch, Bf16Rows rows);

/// A dispatch that came over the wire, and everything that it points into. Decode into the same one
/// again: the memory is reused. Not thread-safe. Moves would break its views, so it does not.
class ReceivedDispatch {
 public:
  ReceivedDispatch() = default;
  ReceivedDispatch(const ReceivedDispatch&) = delete;
  ReceivedDispatch& operator=(const ReceivedDispatch&) = delete;

  /// Checks everything before it allocates by any number from the message: sizes, then the rules of
  /// ValidateServiceDispatch. INVALID_ARGUMENT says what is wrong; the object is then unusable
  /// until the next Decode. `num_ids` is PlacementShape::NumIds of the layer.
  absl::Status Decode(const Message& message, int64_t hidden_size, int32_t num_ids);

  /// With its derived part filled.
  const ServiceDispatch& dispatch() const { return dispatch_; }
  Bf16Rows rows() const { return rows_.rows; }

 private:
  ReceivedRows rows_;
  std::vector<int32_t> row_ids_;
  std::vector<int64_t> row_begin_;
  std::vector<uint16_t> counts_, ids_;  // as they come
  std::vector<int32_t> expert_ids_;
  std::vector<float> weights_;
  std::vector<uint8_t> joins_;
  DispatchOrder order_;
  ServiceDispatch dispatch_;
};

}  // namespace moebius
