// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench/channel.h"

#include "moebius/base/owned_fd.h"

// What no transport between two processes of one host can beat: copying memory once, and waking the
// other process.

namespace moebius {

/// Four times the last-level cache, at most 1 GiB: what is touched has left it when its turn comes
/// again.
size_t ColdBytes();

/// One core copying between two memories that are larger than the last-level cache, `message_bytes`
/// at a time.
class MemoryCopy {
 public:
  MemoryCopy();
  Throughput Measure(int64_t message_bytes, absl::Duration duration);

 private:
  SharedBytes source_;
  BytesBuilder target_;
};

/// A page that two processes share, and who waits on it.
struct FutexPage;

/// Two processes that wake each other through a futex: one side, in this process.
class FutexPing {
 public:
  /// A new page behind an anonymous descriptor for the other process.
  static absl::StatusOr<std::unique_ptr<FutexPing>> Make();
  ~FutexPing();
  int descriptor() const { return descriptor_.fd(); }
  /// The mean time there and back.
  absl::StatusOr<absl::Duration> Measure(absl::Duration duration);

 private:
  FutexPing(OwnedFd descriptor, FutexPage* page)
      : descriptor_(std::move(descriptor)), page_(page) {}
  const OwnedFd descriptor_;
  FutexPage* const page_;
  uint32_t round_ = 0;
};

/// The other side: answers every ping until `stopping`.
absl::Status AnswerFutexPings(int descriptor, const std::atomic<bool>& stopping);

}  // namespace moebius
