// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "moebius/base/mutex.h"
#include "router_service/peer_directory.h"

namespace moebius {

/// The listeners of a PeerDirectory. Thread-safe; a listener adds or removes none.
class ListenerList {
 public:
  PeerDirectory::ListenerId Add(std::function<void()> on_change) {
    MutexLock lock(mutex_);
    listeners_[++last_id_] = std::move(on_change);
    return last_id_;
  }
  /// Waits for a call of the listener that is under way.
  void Remove(PeerDirectory::ListenerId id) {
    MutexLock lock(mutex_);
    listeners_.erase(id);
  }
  void Call() {
    MutexLock lock(mutex_);
    for (const auto& [id, on_change] : listeners_) on_change();
  }

 private:
  Mutex mutex_;  // held while listeners are called
  std::map<PeerDirectory::ListenerId, std::function<void()>> listeners_ MOEBIUS_GUARDED_BY(mutex_);
  PeerDirectory::ListenerId last_id_ MOEBIUS_GUARDED_BY(mutex_) = 0;
};

}  // namespace moebius
