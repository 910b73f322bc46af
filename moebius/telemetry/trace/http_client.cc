// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/trace/http_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/owned_fd.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// How often a wait looks whether its deadline has come nearer.
constexpr absl::Duration kLook = absl::Milliseconds(20);
constexpr size_t kMaxHostBytes = 255;
constexpr size_t kMaxPathBytes = 1024;
// "HTTP/1.1 200": what is read of an answer.
constexpr size_t kStatusBytes = 12;
constexpr int kMaxAddresses = 8;  // of one name, that are tried
// The rest of an answer is thrown away: closing before it would reset the connection.
constexpr size_t kMaxRestBytes = 64 << 10;
constexpr absl::Duration kMaxRestWait = absl::Milliseconds(200);

bool IsHostCharacter(char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; }
bool IsAddressCharacter(char c) {
  return absl::ascii_isxdigit(c) || c == ':' || c == '.' || c == '%' || IsHostCharacter(c);
}
bool IsPathCharacter(char c) { return c > ' ' && c < 0x7F && c != '#' && c != '"' && c != '\\'; }

template <typename Text, typename Condition>
bool All(const Text& text, Condition condition) {
  return std::all_of(text.begin(), text.end(), condition);
}

absl::Status NoTarget(absl::string_view url) {
  return WithHint(absl::InvalidArgumentError(
                      absl::StrCat("'", url.substr(0, 128), "' is no http://HOST:PORT/PATH")),
                  "https is not spoken: send to a collector beside the router, and let that one "
                  "encrypt");
}

// Waits for `events`. DEADLINE_EXCEEDED with what was waited for.
absl::Status WaitFor(const OwnedFd& socket, short events, const PostDeadline& deadline,
                     absl::string_view what) {
  while (true) {
    const absl::Duration left = deadline() - Clock::Monotonic().Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("no time left to ", what));
    }
    pollfd polled = {socket.fd(), events, 0};
    const int wait_ms = static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kLook))) + 1;
    if (poll(&polled, 1, wait_ms) > 0) return absl::OkStatus();
  }
}

absl::StatusOr<OwnedFd> ConnectTo(const addrinfo& info, const PostDeadline& deadline) {
  OwnedFd socket(::socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) return absl::UnavailableError(std::strerror(errno));
  if (connect(socket.fd(), info.ai_addr, info.ai_addrlen) == 0) return {std::move(socket)};
  if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
  MOEBIUS_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline, "connect"));
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  return {std::move(socket)};
}

absl::StatusOr<OwnedFd> Connect(const HttpTarget& target, const PostDeadline& deadline) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = absl::StrCat(target.port);
  const int error = getaddrinfo(target.host.c_str(), port.c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  if (error != 0) return absl::UnavailableError(gai_strerror(error));
  absl::StatusOr<OwnedFd> socket = absl::UnavailableError("the name has no address");
  int tried = 0;
  for (const addrinfo* info = found; info != nullptr && tried < kMaxAddresses;
       info = info->ai_next, ++tried) {
    socket = ConnectTo(*info, deadline);
    if (socket.ok() || absl::IsDeadlineExceeded(socket.status())) break;
  }
  return socket;
}

absl::Status SendAll(const OwnedFd& socket, absl::string_view bytes, const PostDeadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      MOEBIUS_RETURN_IF_ERROR(WaitFor(socket, POLLOUT, deadline, "send"));
    } else if (errno != EINTR) {
      return absl::DataLossError(std::strerror(errno));
    }
  }
  return absl::OkStatus();
}

// Of a status line's first kStatusBytes.
absl::StatusOr<int> CodeOf(absl::string_view line) {
  int code = 0;
  if (line.size() < kStatusBytes || !absl::StartsWith(line, "HTTP/1.") || line[8] != ' ' ||
      !absl::SimpleAtoi(line.substr(9, 3), &code) || code < 100 || code > 599) {
    return absl::DataLossError("the answer is no HTTP/1");
  }
  return code;
}

absl::StatusOr<int> ReadCode(const OwnedFd& socket, const PostDeadline& deadline) {
  char bytes[kStatusBytes];
  size_t size = 0;
  while (size < kStatusBytes) {
    const ssize_t count = recv(socket.fd(), bytes + size, kStatusBytes - size, 0);
    if (count > 0) {
      size += static_cast<size_t>(count);
    } else if (count == 0) {
      return absl::DataLossError("the connection ended before the answer");
    } else if (errno == EAGAIN) {
      MOEBIUS_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline, "read the answer"));
    } else if (errno != EINTR) {
      return absl::DataLossError(std::strerror(errno));
    }
  }
  return CodeOf(absl::string_view(bytes, size));
}

// Until the other side ends.
absl::StatusOr<std::string> ReadAll(const OwnedFd& socket, size_t max_bytes,
                                    const PostDeadline& deadline) {
  std::string all;
  char bytes[4096];
  while (true) {
    const ssize_t count = recv(socket.fd(), bytes, sizeof(bytes), 0);
    if (count > 0) {
      all.append(bytes, static_cast<size_t>(count));
      if (all.size() > max_bytes) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the answer has more than ", max_bytes, " bytes"));
      }
    } else if (count == 0) {
      return all;
    } else if (errno == EAGAIN) {
      MOEBIUS_RETURN_IF_ERROR(WaitFor(socket, POLLIN, deadline, "read the answer"));
    } else if (errno != EINTR) {
      return absl::DataLossError(std::strerror(errno));
    }
  }
}

std::string HostHeader(const HttpTarget& target) {
  const bool is_ipv6 = target.host.find(':') != std::string::npos;
  return absl::StrCat("Host: ", is_ipv6 ? "[" : "", target.host, is_ipv6 ? "]" : "", ":",
                      target.port, "\r\n");
}

void DiscardRest(const OwnedFd& socket, const PostDeadline& deadline) {
  const absl::Duration end = std::min(deadline(), Clock::Monotonic().Now() + kMaxRestWait);
  const PostDeadline soon = [end] { return end; };
  char bytes[4096];
  for (size_t size = 0; size < kMaxRestBytes;) {
    const ssize_t count = recv(socket.fd(), bytes, sizeof(bytes), 0);
    if (count > 0) {
      size += static_cast<size_t>(count);
    } else if (count == 0 || errno != EAGAIN ||
               !WaitFor(socket, POLLIN, soon, "read the rest").ok()) {
      return;
    }
  }
}

}  // namespace

absl::StatusOr<HttpTarget> ParseHttpTarget(absl::string_view url, absl::string_view default_path) {
  absl::string_view rest = url;
  if (!absl::ConsumePrefix(&rest, "http://")) return NoTarget(url);
  const size_t path_at = std::min(rest.find('/'), rest.size());
  HttpTarget target;
  target.path = std::string(path_at == rest.size() ? default_path : rest.substr(path_at));
  absl::string_view authority = rest.substr(0, path_at);
  const size_t colon = authority.rfind(':');
  if (colon == absl::string_view::npos) return NoTarget(url);
  absl::string_view host = authority.substr(0, colon);
  const absl::string_view port = authority.substr(colon + 1);
  const bool is_bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (is_bracketed) host = host.substr(1, host.size() - 2);
  int32_t number = 0;
  if (host.empty() || host.size() > kMaxHostBytes ||
      !All(host, is_bracketed ? IsAddressCharacter : IsHostCharacter) ||
      !All(port, absl::ascii_isdigit) || !absl::SimpleAtoi(port, &number) || number < 1 ||
      number > 65535 || target.path.size() > kMaxPathBytes || !All(target.path, IsPathCharacter)) {
    return NoTarget(url);
  }
  target.host = std::string(host);
  target.port = static_cast<uint16_t>(number);
  return target;
}

absl::StatusOr<int> PostHttp(const HttpTarget& target, absl::string_view content_type,
                             absl::string_view body, const PostDeadline& deadline) {
  MOEBIUS_ASSIGN_OR_RETURN(const OwnedFd socket, Connect(target, deadline));
  const std::string head = absl::StrCat(
      "POST ", target.path, " HTTP/1.1\r\n", HostHeader(target), "Content-Type: ", content_type,
      "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n");
  MOEBIUS_RETURN_IF_ERROR(SendAll(socket, head, deadline));
  MOEBIUS_RETURN_IF_ERROR(SendAll(socket, body, deadline));
  absl::StatusOr<int> code = ReadCode(socket, deadline);
  if (code.ok()) DiscardRest(socket, deadline);
  return code;
}

std::string HttpAnswer::Header(absl::string_view name) const {
  for (absl::string_view line : absl::StrSplit(head, "\r\n")) {
    const size_t colon = line.find(':');
    if (colon == absl::string_view::npos) continue;
    if (!absl::EqualsIgnoreCase(line.substr(0, colon), name)) continue;
    return std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return "";
}

absl::StatusOr<HttpAnswer> GetHttp(const HttpTarget& target, size_t max_bytes,
                                   const PostDeadline& deadline) {
  MOEBIUS_ASSIGN_OR_RETURN(const OwnedFd socket, Connect(target, deadline));
  const std::string request = absl::StrCat("GET ", target.path, " HTTP/1.1\r\n", HostHeader(target),
                                           "Connection: close\r\n\r\n");
  MOEBIUS_RETURN_IF_ERROR(SendAll(socket, request, deadline));
  MOEBIUS_ASSIGN_OR_RETURN(const std::string all, ReadAll(socket, max_bytes, deadline));
  HttpAnswer answer;
  MOEBIUS_ASSIGN_OR_RETURN(answer.code, CodeOf(all));
  const size_t end = all.find("\r\n\r\n");
  if (end == std::string::npos) {
    return absl::DataLossError("the connection ended before the answer");
  }
  answer.head = all.substr(0, end);
  answer.body = all.substr(end + 4);
  return answer;
}

}  // namespace moebius
