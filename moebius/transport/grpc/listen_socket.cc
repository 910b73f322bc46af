// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/listen_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/transport/grpc/port_owner.h"

namespace moebius {
namespace {

// More connections than this wait in the kernel only while the accept loop is held up.
constexpr int kBacklog = 1024;
constexpr size_t kMaxAddresses = 8;

absl::Status BindError(const Address& address, int error) {
  const std::string where = FormatAddress(address);
  if (error == EADDRINUSE) {
    const std::string owner = PortOwner(address.port);
    return WithHint(
        absl::UnavailableError(absl::StrCat("address already in use: ", where,
                                            owner.empty() ? "" : " is held by ", owner)),
        "stop that process, or listen on another port (0 chooses a free one)");
  }
  const std::string message = absl::StrCat("cannot listen on ", where, ": ", std::strerror(error));
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  if (error == EADDRNOTAVAIL || error == EINVAL || error == ENODEV) {
    return WithHint(absl::InvalidArgumentError(message), "listen on an address of this host");
  }
  return absl::UnavailableError(message);
}

absl::StatusOr<OwnedFd> Listen(const Address& address, const addrinfo& info) {
  OwnedFd socket(::socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) return BindError(address, errno);
  const int on = 1;
  const int off = 0;
  // A port whose last connections are in TIME_WAIT may be used; one that is listened on may not.
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (info.ai_family == AF_INET6) {
    setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, IsUnspecified(address) ? &off : &on,
               sizeof(on));
  }
  if (bind(socket.fd(), info.ai_addr, info.ai_addrlen) != 0 || listen(socket.fd(), kBacklog) != 0) {
    return BindError(address, errno);
  }
  return socket;
}

uint16_t PortOf(const OwnedFd& socket) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

absl::StatusOr<ListenSockets> OpenListenSockets(const Address& address) {
  ListenSockets result;
  result.address = address;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  if (error != 0) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(
                        "cannot listen on ", FormatAddress(address), ": ", gai_strerror(error))),
                    "listen on an address of this host");
  }
  absl::Status failure;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    if (result.sockets.size() == kMaxAddresses) break;
    // The other addresses of a name take the port that the first was given.
    if (info->ai_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(info->ai_addr)->sin6_port = htons(result.address.port);
    } else {
      reinterpret_cast<sockaddr_in*>(info->ai_addr)->sin_port = htons(result.address.port);
    }
    absl::StatusOr<OwnedFd> socket = Listen(result.address, *info);
    if (!socket.ok()) {
      failure = socket.status();
      // Half of a busy name is no place to listen; an address family that is off is.
      if (absl::IsUnavailable(failure)) return failure;
      continue;
    }
    result.sockets.push_back(*std::move(socket));
    result.address.port = PortOf(result.sockets.front());
  }
  if (result.sockets.empty()) return failure;
  return result;
}

RemoteAddress RemoteAddressOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  RemoteAddress remote;
  uint16_t port = 0;
  bool is_v6 = false;
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    port = ntohs(v6.sin6_port);
    is_v6 = !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr);
    if (is_v6) {
      inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    } else {
      inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    }
  } else if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    port = ntohs(v4.sin_port);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  }
  remote.host = text;
  remote.host_and_port =
      is_v6 ? absl::StrCat("[", text, "]:", port) : absl::StrCat(text, ":", port);
  return remote;
}

}  // namespace moebius
