// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/base/owned_fd.h"
#include "moebius/transport/address.h"

namespace moebius {

/// What a port of this host answers to a GET, head and body; ends when the port closes the
/// connection.
inline std::string HttpGet(const Address& address, const std::string& path) {
  const OwnedFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(address.port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(client.fd(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\n\r\n");
  EXPECT_EQ(send(client.fd(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t count = 1; count > 0;) {
    count = recv(client.fd(), buffer, sizeof(buffer), 0);
    if (count > 0) answer.append(buffer, static_cast<size_t>(count));
  }
  return answer;
}

}  // namespace moebius
