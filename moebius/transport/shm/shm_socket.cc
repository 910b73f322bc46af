// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shm_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/transport/shm/shared_segment.h"

namespace moebius {
namespace {

constexpr int kBacklog = 1024;
constexpr uint32_t kFirstFreePort = 49152;
constexpr uint32_t kNumFreePorts = 65536 - kFirstFreePort;

constexpr uint64_t kHandoverMagic = 0x324d48534245'4f4dULL;  // "MOEBSHM2" in memory
constexpr uint64_t kRefusalMagic = 0x524d48534245'4f4dULL;   // "MOEBSHMR"
constexpr size_t kNumDescriptors = 3;

// The ends are processes of one host, so its byte order is theirs.
struct HandoverMessage {
  uint64_t magic = kHandoverMagic;
  uint64_t ring_bytes = 0;
};
struct RefusalMessage {
  uint64_t magic = kRefusalMagic;
  uint32_t code = 0;
  uint32_t text_bytes = 0;
  std::array<char, 240> text = {};
};

using Descriptors = std::array<OwnedFd, kNumDescriptors>;

// A handover as the kernel sends and receives it: the message, and room for the descriptors.
class HandoverEnvelope {
 public:
  HandoverEnvelope() {
    header_.msg_iov = &bytes_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_.data();
    header_.msg_controllen = control_.size();
  }
  HandoverEnvelope(const HandoverEnvelope&) = delete;
  HandoverEnvelope& operator=(const HandoverEnvelope&) = delete;

  msghdr& header() { return header_; }
  HandoverMessage& message() { return message_; }

  void Enclose(const std::array<int, kNumDescriptors>& descriptors) {
    cmsghdr* const rights = CMSG_FIRSTHDR(&header_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(descriptors));
    std::memcpy(CMSG_DATA(rights), descriptors.data(), sizeof(descriptors));
  }

  // Owns at once what came, whatever it is worth; `count`: how many that were.
  Descriptors TakeDescriptors(size_t* count) {
    Descriptors taken;
    *count = 0;
    for (cmsghdr* part = CMSG_FIRSTHDR(&header_); part != nullptr;
         part = CMSG_NXTHDR(&header_, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      const size_t num = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < num; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
        OwnedFd owned(fd);
        if (*count < taken.size()) taken[*count] = std::move(owned);
        ++*count;
      }
    }
    return taken;
  }

 private:
  HandoverMessage message_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kNumDescriptors * sizeof(int))> control_ = {};
  iovec bytes_ = {&message_, sizeof(message_)};
  msghdr header_ = {};
};

struct Name {
  sockaddr_un address = {};
  socklen_t size = 0;
};

Name NameOf(uint16_t port) {
  Name name;
  name.address.sun_family = AF_UNIX;
  // A zero before it: abstract.
  const std::string text = absl::StrCat("moebius.shm.", port);
  std::memcpy(name.address.sun_path + 1, text.data(), text.size());
  name.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

const sockaddr* AsSockaddr(const Name& name) {
  return reinterpret_cast<const sockaddr*>(&name.address);
}

OwnedFd NewSocket() {
  return OwnedFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

std::optional<ShmPeer> PeerOf(int socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  return ShmPeer{credentials.pid, credentials.uid};
}

std::string Printable(std::string text) {
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

// "pid 4242 (moebius)" of whoever listens on the port: for a message only.
std::string OwnerOf(uint16_t port) {
  const Name name = NameOf(port);
  const OwnedFd socket = NewSocket();
  if (connect(socket.fd(), AsSockaddr(name), name.size) != 0) return "another process";
  const std::optional<ShmPeer> peer = PeerOf(socket.fd());
  if (!peer.has_value() || peer->pid == 0) return "a process that cannot be seen from here";
  std::ifstream file(absl::StrCat("/proc/", peer->pid, "/comm"));
  std::string program;
  std::getline(file, program);
  return absl::StrCat("pid ", peer->pid, program.empty() ? "" : " (", Printable(program),
                      program.empty() ? "" : ")");
}

}  // namespace

absl::StatusOr<ShmListenSocket> OpenShmListenSocket(const Address& address) {
  ShmListenSocket result;
  result.address = address;
  result.socket = NewSocket();
  if (result.socket.fd() < 0) return absl::ResourceExhaustedError("no descriptor for a socket");
  // Beginning at different places, processes that start together rarely meet.
  const uint32_t start = static_cast<uint32_t>(getpid());
  const uint32_t num_tries = address.port == 0 ? kNumFreePorts : 1;
  for (uint32_t i = 0; i < num_tries; ++i) {
    if (address.port == 0) {
      result.address.port = static_cast<uint16_t>(kFirstFreePort + (start + i) % kNumFreePorts);
    }
    const Name name = NameOf(result.address.port);
    if (bind(result.socket.fd(), AsSockaddr(name), name.size) == 0) {
      if (listen(result.socket.fd(), kBacklog) == 0) return result;
      break;
    }
    if (errno != EADDRINUSE) break;
  }
  const int error = errno;
  const std::string where = FormatAddress(result.address);
  if (error == EADDRINUSE) {
    return WithHint(
        absl::UnavailableError(absl::StrCat("address already in use: ", where, " is held by ",
                                            OwnerOf(result.address.port))),
        "stop that process, or listen on another port (0 chooses a free one)");
  }
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", where, ": ", std::strerror(error)));
}

absl::StatusOr<ShmPeer> CheckShmPeer(int socket) {
  const std::optional<ShmPeer> peer = PeerOf(socket);
  if (!peer.has_value()) return absl::UnavailableError("the connection has ended");
  if (peer->uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("shared memory is for processes of one user: the other end, pid ", peer->pid,
                     ", runs as user ", peer->uid, ", this one as ", geteuid()));
  }
  return *peer;
}

absl::StatusOr<std::optional<OwnedFd>> ConnectShmSocket(const Address& address) {
  const Name name = NameOf(address.port);
  OwnedFd socket = NewSocket();
  if (socket.fd() < 0) return absl::ResourceExhaustedError("no descriptor for a socket");
  if (connect(socket.fd(), AsSockaddr(name), name.size) != 0) {
    if (errno == EAGAIN) return std::nullopt;
    if (errno == ECONNREFUSED) {
      return absl::UnavailableError(absl::StrCat("connection refused: nobody listens on ",
                                                 FormatAddress(address), " of this host"));
    }
    return absl::UnavailableError(
        absl::StrCat("cannot connect to ", FormatAddress(address), ": ", std::strerror(errno)));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckShmPeer(socket.fd()).status());
  return socket;
}

absl::Status SendHandover(int socket, const ShmHandover& handover) {
  HandoverEnvelope envelope;
  envelope.message().ring_bytes = handover.ring_bytes;
  envelope.Enclose({handover.memory.fd(), handover.dialer_bell.fd(), handover.listener_bell.fd()});
  // The first message of a socket always finds room.
  const ssize_t size = sendmsg(socket, &envelope.header(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (size != ssize_t{sizeof(HandoverMessage)}) {
    return absl::UnavailableError(
        absl::StrCat("cannot hand over shared memory: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ShmHandover>> ReceiveHandover(int socket, uint64_t max_ring_bytes) {
  HandoverEnvelope envelope;
  const msghdr& header = envelope.header();
  const ssize_t size = recvmsg(socket, &envelope.header(), MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (size <= 0) return absl::UnavailableError("the connection has ended");
  size_t count = 0;
  Descriptors descriptors = envelope.TakeDescriptors(&count);
  const HandoverMessage& message = envelope.message();
  if (size != ssize_t{sizeof(message)} || (header.msg_flags & MSG_TRUNC) != 0 ||
      message.magic != kHandoverMagic) {
    return absl::InvalidArgumentError("handover: not one of this version");
  }
  if (count != kNumDescriptors || (header.msg_flags & MSG_CTRUNC) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("handover: ", count, " descriptors, not 3"));
  }
  if (message.ring_bytes == 0 || message.ring_bytes > max_ring_bytes ||
      message.ring_bytes % kSegmentPageBytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("handover: rings of ", message.ring_bytes,
                                                   " bytes, not whole pages in [1, ",
                                                   max_ring_bytes, "]"));
  }
  ShmHandover handover;
  handover.ring_bytes = message.ring_bytes;
  handover.memory = std::move(descriptors[0]);
  handover.dialer_bell = std::move(descriptors[1]);
  handover.listener_bell = std::move(descriptors[2]);
  return handover;
}

void SendRefusal(int socket, const absl::Status& reason) {
  RefusalMessage message;
  message.code = static_cast<uint32_t>(reason.code());
  message.text_bytes =
      static_cast<uint32_t>(std::min(reason.message().size(), message.text.size()));
  std::memcpy(message.text.data(), reason.message().data(), message.text_bytes);
  // Who is not there to hear it needs no reason.
  send(socket, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::optional<absl::Status> ReceiveEnd(int socket) {
  RefusalMessage message;
  ssize_t size = recv(socket, &message, sizeof(message), MSG_DONTWAIT);
  // Reported once when the other end had not read all; what it said is still behind it.
  if (size < 0 && errno == ECONNRESET) size = recv(socket, &message, sizeof(message), MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (size <= 0) return absl::OkStatus();
  const bool is_known = message.code > 0 && message.code <= 16;
  if (size != ssize_t{sizeof(message)} || message.magic != kRefusalMagic || !is_known ||
      message.text_bytes > message.text.size()) {
    return absl::InvalidArgumentError("the other end sent bytes that are no refusal");
  }
  return absl::Status(
      static_cast<absl::StatusCode>(message.code),
      absl::StrCat("the other end refused: ",
                   Printable(std::string(message.text.data(), message.text_bytes))));
}

}  // namespace moebius
