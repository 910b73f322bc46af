// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "moebius/base/owned_fd.h"

namespace moebius {

/// An HTTP server of one thread that keeps what is posted to it, and answers as it is told. Each
/// connection has one request. Thread-safe.
class FakeCollector {
 public:
  FakeCollector();
  ~FakeCollector();

  uint16_t port() const { return port_; }
  std::string url() const;

  /// Of the requests that follow. 0: the connection is closed without an answer.
  void AnswerWith(int code) { code_ = code; }
  /// Before a request is read; the collector ends at once all the same.
  void WaitBefore(absl::Duration pause) { pause_ns_ = absl::ToInt64Nanoseconds(pause); }

  /// Heads and bodies that came, whole ones.
  std::vector<std::string> heads() const MOEBIUS_EXCLUDES(mutex_);
  std::vector<std::string> bodies() const MOEBIUS_EXCLUDES(mutex_);
  /// False when they do not come within 20 s.
  bool WaitForBodies(size_t count) const MOEBIUS_EXCLUDES(mutex_);

 private:
  void Run();
  void Serve(const OwnedFd& connection) MOEBIUS_EXCLUDES(mutex_);

  OwnedFd listener_;
  uint16_t port_ = 0;
  std::atomic<bool> ending_{false};
  std::atomic<int> code_{200};
  std::atomic<int64_t> pause_ns_{0};
  mutable Mutex mutex_;
  std::vector<std::string> heads_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<std::string> bodies_ MOEBIUS_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace moebius
