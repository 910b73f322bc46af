// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/http/http_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "moebius/base/check.h"
#include "moebius/telemetry/http/http_server.h"

namespace moebius {
namespace {

constexpr size_t kReadBytes = 4096;
// More than this behind a request is not waited for: the connection is reset.
constexpr size_t kMaxDiscardedBytes = 64 << 10;

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

HttpConnection::HttpConnection(OwnedFd socket, std::string host, const HttpLimits& limits,
                               absl::Duration now)
    : socket_(std::move(socket)),
      host_(std::move(host)),
      limits_(limits),
      deadline_(now + limits.request_timeout) {}

void HttpConnection::Advance(absl::Duration now) {
  if (state_ == State::kReading) Read();
  if (state_ == State::kWriting) Write(now);
  if (state_ == State::kClosing) Discard();
}

const HttpRequest* HttpConnection::pending_request() const {
  return state_ == State::kReading && parse_.request.has_value() ? &*parse_.request : nullptr;
}

void HttpConnection::Answer(std::string bytes, absl::Duration now) {
  MOEBIUS_CHECK(state_ == State::kReading && !parse_.needs_more());
  out_ = std::move(bytes);
  in_ = std::string();
  parse_ = HttpParse();
  state_ = State::kWriting;
  deadline_ = now + limits_.answer_timeout;
  Advance(now);
}

void HttpConnection::End() {
  state_ = State::kDone;
  out_ = std::string();
  num_sent_ = 0;
}

void HttpConnection::Read() {
  char buffer[kReadBytes];
  while (parse_.needs_more()) {
    const ssize_t count = recv(fd(), buffer, sizeof(buffer), 0);
    if (count > 0) {
      in_.append(buffer, static_cast<size_t>(count));
      parse_ = ParseHttpRequest(in_, limits_.max_request_bytes);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && WouldBlock()) {
      return;
    } else {
      // A port scan that said nothing is no fault.
      state_ = count == 0 && in_.empty() ? State::kDone : State::kBroken;
      return;
    }
  }
}

void HttpConnection::Write(absl::Duration now) {
  while (num_sent_ < out_.size()) {
    const ssize_t count =
        send(fd(), out_.data() + num_sent_, out_.size() - num_sent_, MSG_NOSIGNAL);
    if (count >= 0) {
      num_sent_ += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      if (!WouldBlock()) state_ = State::kBroken;
      return;
    }
  }
  out_ = std::string();
  num_sent_ = 0;
  shutdown(fd(), SHUT_WR);
  state_ = State::kClosing;
  deadline_ = now + limits_.close_timeout;
}

void HttpConnection::Discard() {
  char buffer[kReadBytes];
  while (num_discarded_ < kMaxDiscardedBytes) {
    const ssize_t count = recv(fd(), buffer, sizeof(buffer), 0);
    if (count > 0) {
      num_discarded_ += static_cast<size_t>(count);
    } else if (count == 0 || (errno != EINTR && !WouldBlock())) {
      break;
    } else if (WouldBlock()) {
      return;
    }
  }
  state_ = State::kDone;
}

}  // namespace moebius
