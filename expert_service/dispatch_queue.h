// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

#include "moebius/base/spare_memory.h"
#include "moebius/base/strong_id.h"
#include "moebius/transport/frame/message.h"
#include "moebius/transport/lane.h"

namespace moebius {

/// A dispatch that has arrived and is not served yet.
struct WaitingDispatch {
  PeerId source;
  Lane lane = Lane::kDecode;
  Message message;
  absl::Duration arrived;  // on the server's clock
};

struct DispatchQueueLimits {
  size_t max_dispatches = 256;
  uint64_t max_bytes = uint64_t{512} << 20;
  /// A bulk dispatch that has waited so long goes before decode, every second time.
  absl::Duration bulk_patience = absl::Milliseconds(20);
};

/// In which order an expert service serves: decode before bulk, since a decode step is short and
/// somebody waits for each of its tokens; but bulk ages, so that it moves under any decode load.
/// Pure of threads and clocks. Not thread-safe.
///
/// Invariants:
/// 1. Never more than the limits, save one dispatch into an empty queue.
/// 2. Within a lane in the order of arrival.
/// 3. While bulk has waited for bulk_patience, at most one decode dispatch goes before it.
class DispatchQueue {
 public:
  explicit DispatchQueue(const DispatchQueueLimits& limits) : limits_(limits) {}

  /// False, with `dispatch` untouched, when it does not fit. The control lane counts as bulk.
  bool TryPush(WaitingDispatch& dispatch);
  std::optional<WaitingDispatch> Pop(absl::Duration now);
  /// The next of decode, for the pauses of bulk work.
  std::optional<WaitingDispatch> PopDecode();
  /// Forgets what `source` sent; how many dispatches that were.
  size_t RemoveFrom(PeerId source);

  size_t size() const { return decode_.size() + bulk_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  bool IsBulkNext(absl::Duration now) const;
  std::optional<WaitingDispatch> TakeFirst(SpareDeque<WaitingDispatch>& lane);

  const DispatchQueueLimits limits_;
  SpareDeque<WaitingDispatch> decode_;
  SpareDeque<WaitingDispatch> bulk_;
  uint64_t bytes_ = 0;
  bool served_bulk_last_ = false;
};

}  // namespace moebius
