// SPDX-License-Identifier: Apache-2.0
#include "tests/telemetry/fake_collector.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"

namespace moebius {
namespace {

constexpr int kLookMs = 10;
constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr absl::string_view kLength = "Content-Length: ";

// What is missing of a whole request; 1 while its head is not whole.
size_t MissingBytes(const std::string& bytes, size_t* head_size) {
  const size_t end = bytes.find("\r\n\r\n");
  if (end == std::string::npos) return 1;
  *head_size = end + 4;
  const size_t at = bytes.find(std::string(kLength));
  int64_t length = 0;
  if (at < end) {
    const size_t begin = at + kLength.size();
    EXPECT_TRUE(absl::SimpleAtoi(bytes.substr(begin, bytes.find('\r', begin) - begin), &length));
  }
  const size_t size = *head_size + static_cast<size_t>(length);
  return size > bytes.size() ? size - bytes.size() : 0;
}

}  // namespace

FakeCollector::FakeCollector() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener_.fd(), generic, sizeof(address)), 0);
  EXPECT_EQ(listen(listener_.fd(), 64), 0);
  socklen_t size = sizeof(address);
  EXPECT_EQ(getsockname(listener_.fd(), generic, &size), 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

FakeCollector::~FakeCollector() {
  ending_ = true;
  thread_.join();
}

std::string FakeCollector::url() const {
  return absl::StrCat("http://127.0.0.1:", port_, "/v1/traces");
}

std::vector<std::string> FakeCollector::heads() const {
  MutexLock lock(mutex_);
  return heads_;
}

std::vector<std::string> FakeCollector::bodies() const {
  MutexLock lock(mutex_);
  return bodies_;
}

bool FakeCollector::WaitForBodies(size_t count) const {
  const absl::Duration end = Clock::Monotonic().Now() + kPatience;
  while (bodies().size() < count) {
    if (Clock::Monotonic().Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

void FakeCollector::Run() {
  while (!ending_) {
    pollfd polled = {listener_.fd(), POLLIN, 0};
    if (poll(&polled, 1, kLookMs) <= 0) continue;
    const OwnedFd connection(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    const absl::Duration begin = Clock::Monotonic().Now();
    while (!ending_ && Clock::Monotonic().Now() - begin < absl::Nanoseconds(pause_ns_.load())) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    if (!ending_) Serve(connection);
  }
}

void FakeCollector::Serve(const OwnedFd& connection) {
  std::string bytes;
  size_t head_size = 0;
  while (MissingBytes(bytes, &head_size) > 0) {
    pollfd polled = {connection.fd(), POLLIN, 0};
    if (poll(&polled, 1, kLookMs) == 0) {
      if (ending_) return;
      continue;
    }
    char buffer[4096];
    const ssize_t count = recv(connection.fd(), buffer, sizeof(buffer), 0);
    if (count <= 0) return;
    bytes.append(buffer, static_cast<size_t>(count));
  }
  {
    MutexLock lock(mutex_);
    heads_.push_back(bytes.substr(0, head_size));
    bodies_.push_back(bytes.substr(head_size));
  }
  const int code = code_;
  if (code == 0) return;
  const std::string answer =
      absl::StrCat("HTTP/1.1 ", code, " Whatever\r\nContent-Type: application/json\r\n",
                   "Content-Length: 2\r\n\r\n{}");
  send(connection.fd(), answer.data(), answer.size(), MSG_NOSIGNAL);
}

}  // namespace moebius
