// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/reactor_pulse.h"

namespace moebius {

LoopProgress ReactorPulse::Look() {
  MutexLock lock(mutex_);
  if (reactor_ == nullptr) return {num_signs_, false};
  if (!is_asked_) {
    is_asked_ = true;
    reactor_->Post([weak = weak_from_this()] {
      const std::shared_ptr<ReactorPulse> self = weak.lock();
      if (self == nullptr) return;
      MutexLock own(self->mutex_);
      self->is_asked_ = false;
      ++self->num_signs_;
    });
  }
  return {num_signs_, true};
}

void ReactorPulse::Detach() {
  MutexLock lock(mutex_);
  reactor_ = nullptr;
}

}  // namespace moebius
