// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moebius {

/// Most bytes of queries, of states or of joined spans that one message between ranks is planned
/// for; a single row, or the spans of one round of one session, may be more.
inline constexpr int64_t kMaxExchangeBytes = int64_t{16} << 20;

}  // namespace moebius
