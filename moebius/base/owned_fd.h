// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace moebius {

/// A file descriptor that is closed with its owner. -1: none.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd();
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Close() { *this = OwnedFd(); }

 private:
  int fd_ = -1;
};

}  // namespace moebius
