// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

#include "moebius/base/strong_id.h"
#include "moebius/transport/failure_detector.h"
#include "moebius/transport/link.h"

namespace moebius {

/// What is known of the process at the other end of a connection.
struct PeerInfo {
  PeerId id;
  std::string name;          // what it calls itself, e.g. "expert-2"; empty until its hello
  uint64_t incarnation = 0;  // 0 until its hello
  std::string greeting;      // opaque to the transport: what the rooms above agree on
  bool dialed = false;       // this process connects to it, and again after it died
  std::string address;       // dialed, or where it came from
  LinkFacts facts;
  PeerState state = PeerState::kConnecting;
  absl::Status reason;  // why it is suspect or dead, or why the last try to connect failed
};

}  // namespace moebius
