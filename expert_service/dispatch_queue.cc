// SPDX-License-Identifier: Apache-2.0
#include "expert_service/dispatch_queue.h"

#include <utility>

namespace moebius {

bool DispatchQueue::TryPush(WaitingDispatch& dispatch) {
  const uint64_t bytes = MessageBytes(dispatch.message);
  if (size() >= limits_.max_dispatches) return false;
  if (size() > 0 && bytes_ + bytes > limits_.max_bytes) return false;
  bytes_ += bytes;
  (dispatch.lane == Lane::kDecode ? decode_ : bulk_).push_back(std::move(dispatch));
  return true;
}

bool DispatchQueue::IsBulkNext(absl::Duration now) const {
  if (bulk_.empty() || decode_.empty()) return !bulk_.empty();
  return !served_bulk_last_ && now - bulk_.front().arrived >= limits_.bulk_patience;
}

std::optional<WaitingDispatch> DispatchQueue::Pop(absl::Duration now) {
  if (size() == 0) return std::nullopt;
  served_bulk_last_ = IsBulkNext(now);
  return TakeFirst(served_bulk_last_ ? bulk_ : decode_);
}

std::optional<WaitingDispatch> DispatchQueue::PopDecode() {
  if (decode_.empty()) return std::nullopt;
  return TakeFirst(decode_);
}

std::optional<WaitingDispatch> DispatchQueue::TakeFirst(SpareDeque<WaitingDispatch>& lane) {
  std::optional<WaitingDispatch> dispatch(std::move(lane.front()));
  lane.pop_front();
  bytes_ -= MessageBytes(dispatch->message);
  return dispatch;
}

size_t DispatchQueue::RemoveFrom(PeerId source) {
  const size_t before = size();
  for (SpareDeque<WaitingDispatch>* lane : {&decode_, &bulk_}) {
    std::erase_if(*lane, [&](const WaitingDispatch& dispatch) {
      if (dispatch.source != source) return false;
      bytes_ -= MessageBytes(dispatch.message);
      return true;
    });
  }
  return before - size();
}

}  // namespace moebius
