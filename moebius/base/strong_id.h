// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <ostream>

namespace moebius {

/// An identity that converts to nothing else: an ExpertId is not a ServiceId, whatever its bits.
template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value_; }

 private:
  Rep value_ = 0;
};

/// A routed expert in [0, E), or a slice of a shared expert or dense layer from E upwards.
using ExpertId = StrongId<struct ExpertIdTag, int32_t>;
/// A transformer layer, from 0.
using LayerId = StrongId<struct LayerIdTag, int32_t>;
/// An expert service in the order of the placement, from 0.
using ServiceId = StrongId<struct ServiceIdTag, int32_t>;
/// A process at the other end of a transport.
using PeerId = StrongId<struct PeerIdTag, uint32_t>;
/// One request's KV.
using SessionId = StrongId<struct SessionIdTag, uint64_t>;
/// The age of a placement snapshot.
using Epoch = StrongId<struct EpochTag, uint64_t>;

}  // namespace moebius
