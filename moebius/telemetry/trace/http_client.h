// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace moebius {

/// Where a request goes.
struct HttpTarget {
  std::string host;  // a name, an IPv4 or an IPv6 address, without brackets
  uint16_t port = 0;
  std::string path;  // begins with '/'
};

/// "http://HOST:PORT/PATH"; without a path it is `default_path`. INVALID_ARGUMENT with a hint for
/// anything else: https above all, which is not spoken.
absl::StatusOr<HttpTarget> ParseHttpTarget(absl::string_view url, absl::string_view default_path);

/// How long a request may go on: asked again and again while it waits.
using PostDeadline = std::function<absl::Duration()>;

/// One POST on a connection of its own, by HTTP/1.1. Resolves the name (which has no limit but the
/// resolver's own), then connects, sends and reads until the answer's status is there or
/// `deadline`, a time of Clock::Monotonic() that is looked at every 20 ms, has passed. Returns the
/// code, 100 to 599; the answer's body is not read. UNAVAILABLE: nobody there; DEADLINE_EXCEEDED;
/// DATA_LOSS: it was no HTTP, or the connection ended before an answer.
absl::StatusOr<int> PostHttp(const HttpTarget& target, absl::string_view content_type,
                             absl::string_view body, const PostDeadline& deadline);

/// What a GET brought.
struct HttpAnswer {
  int code = 0;      // 100 to 599
  std::string head;  // status line and headers, without the empty line
  std::string body;

  /// The value of the first header of that name, in any case; empty where there is none.
  std::string Header(absl::string_view name) const;
};

/// One GET on a connection of its own, whose end is the answer's. Errors as PostHttp, and
/// RESOURCE_EXHAUSTED for an answer of more than `max_bytes`, head and body.
absl::StatusOr<HttpAnswer> GetHttp(const HttpTarget& target, size_t max_bytes,
                                   const PostDeadline& deadline);

}  // namespace moebius
