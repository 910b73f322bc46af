// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/time/time.h"

#include "moebius/base/owned_fd.h"
#include "moebius/telemetry/http/http_message.h"

namespace moebius {

struct HttpLimits;

/// One accepted connection from its first byte to its end:
///
///   kReading ▸ a request is whole, or never will be ▸ Answer ▸ kWriting ▸ kClosing ▸ kDone
///
/// with kBroken when the other side goes away in between. In kClosing nothing is sent any more and
/// what comes is thrown away: closing with unread bytes would reset the connection and take the
/// answer with it.
///
/// Not thread-safe. Never blocks.
class HttpConnection {
 public:
  enum class State { kReading, kWriting, kClosing, kDone, kBroken };

  /// `limits` outlives the connection; `host` is where it comes from.
  HttpConnection(OwnedFd socket, std::string host, const HttpLimits& limits, absl::Duration now);
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  /// Reads or writes what the socket takes without waiting.
  void Advance(absl::Duration now);

  /// The request that waits for its answer, or null.
  const HttpRequest* pending_request() const;
  /// What to answer instead of a request.
  const std::optional<HttpResponse>& rejection() const { return parse_.rejected; }
  /// Begins to send `bytes`, once.
  void Answer(std::string bytes, absl::Duration now);
  /// Whatever was under way: kDone.
  void End();

  int fd() const { return socket_.fd(); }
  const std::string& host() const { return host_; }
  State state() const { return state_; }
  bool wants_to_write() const { return state_ == State::kWriting; }
  absl::Duration deadline() const { return deadline_; }
  size_t pending_bytes() const { return out_.size() - num_sent_; }

 private:
  void Read();
  void Write(absl::Duration now);
  void Discard();

  const OwnedFd socket_;
  const std::string host_;
  const HttpLimits& limits_;
  State state_ = State::kReading;
  absl::Duration deadline_;
  std::string in_;
  HttpParse parse_;
  std::string out_;
  size_t num_sent_ = 0;
  size_t num_discarded_ = 0;
};

}  // namespace moebius
