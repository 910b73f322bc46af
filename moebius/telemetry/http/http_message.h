// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

// The part of HTTP/1.1 (RFC 9112) that a probe, a scraper and a browser need: one GET or HEAD per
// connection, answered from memory.

namespace moebius {

struct HttpRequest {
  bool head_only = false;  // HEAD: the answer's body is not sent
  std::string path;        // begins with '/', without the query, not decoded
  std::string query;       // what follows the first '?', not decoded
};

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

/// Where reading a request stands.
struct HttpParse {
  std::optional<HttpRequest> request;    // it is whole
  std::optional<HttpResponse> rejected;  // it never will be: what to answer

  bool needs_more() const { return !request.has_value() && !rejected.has_value(); }
};

/// Looks for a request at the beginning of `bytes`, of which at most `max_bytes` may belong to its
/// line and headers. Anybody's bytes are answered: 400 for what is not HTTP/1, 405 for another
/// method, 431 for too much, 505 for another version. Pure.
HttpParse ParseHttpRequest(absl::string_view bytes, size_t max_bytes);

/// Status line, headers and body, for a connection that ends behind it; `now` is what it says of
/// the clock of this host. A browser is told to run, load and frame nothing.
std::string FormatHttpResponse(const HttpResponse& response, bool head_only, absl::Time now);

/// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, 5.6.7), in every locale, and back; nothing for any
/// other text.
std::string FormatHttpDate(absl::Time time);
std::optional<absl::Time> ParseHttpDate(absl::string_view text);

}  // namespace moebius
