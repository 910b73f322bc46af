// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "moebius/base/strong_id.h"

namespace moebius {

/// Which process answers for a slot now: what the ports to other processes ask before they send.
/// The answer may be out of date a moment later; the transport then says UNAVAILABLE.
///
/// Thread-safe. Calls never block.
class PeerDirectory {
 public:
  virtual ~PeerDirectory() = default;

  /// The process in the slot, from the moment when it is assigned until it dies.
  virtual std::optional<PeerId> ExpertPeer(ServiceId service) const = 0;
  virtual std::optional<PeerId> AttentionPeer(int32_t rank) const = 0;

  /// True where rows may go: loaded, the canary went round, and not suspect. Not to an expert
  /// service that drains, but to a rank that does: it has keys of sessions that go on.
  virtual bool IsExpertUsable(ServiceId service) const = 0;
  virtual bool IsAttentionUsable(int32_t rank) const = 0;

  /// The transport said that this process is not there any more: it counts as not usable from now
  /// on, also before the news of its death have come to the directory.
  virtual void NoteGone(PeerId peer) {}

  /// Grows whenever any answer of this object may have changed. One load: cheap enough per layer.
  virtual uint64_t version() const = 0;

  /// `on_change` is called after each change, from the reactor, and never blocks. It is not called
  /// after RemoveListener has returned.
  using ListenerId = uint64_t;
  virtual ListenerId AddListener(std::function<void()> on_change) = 0;
  virtual void RemoveListener(ListenerId id) = 0;
};

}  // namespace moebius
