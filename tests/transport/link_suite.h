// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "gtest/gtest.h"

#include "moebius/transport/link.h"

namespace moebius {

/// What an implementation that goes through the system brings to the suite of its links.
struct LinkMedium {
  std::string name;
  /// A provider on this host whose frames hold so much payload.
  std::function<std::unique_ptr<LinkProvider>(uint64_t max_payload_bytes)> make;
  /// The provider holds no link and no connection any more.
  std::function<bool(const LinkProvider& provider)> is_idle;
};

inline void PrintTo(const LinkMedium& medium, std::ostream* out) { *out << medium.name; }

/// The contract of link.h, for links alone: what Transport makes of them is the conformance
/// suite's.
class LinkSuite : public ::testing::TestWithParam<LinkMedium> {
 protected:
  static constexpr uint64_t kMaxPayload = uint64_t{1} << 20;
  static constexpr Lane kLane = Lane::kControl;

  std::unique_ptr<LinkProvider> Make(uint64_t max_payload_bytes = kMaxPayload) const {
    return GetParam().make(max_payload_bytes);
  }
};

}  // namespace moebius
