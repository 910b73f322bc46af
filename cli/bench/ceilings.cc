// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/ceilings.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/clock.h"
#include "moebius/base/status.h"

namespace moebius {

struct FutexPage {
  // Each on a cache line of its own.
  alignas(64) std::atomic<uint32_t> ping{0};
  alignas(64) std::atomic<uint32_t> pong{0};
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

namespace {

// Where the system says nothing about its last level.
constexpr size_t kUsualCacheBytes = size_t{32} << 20;
constexpr size_t kMaxColdBytes = size_t{1} << 30;

absl::Status SystemError(absl::string_view call) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(errno)));
}

// Waits while `word` is `value`, at most 100 ms.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t value) {
  const timespec limit = {0, 100'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void FutexWake(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

absl::StatusOr<FutexPage*> MapPage(int descriptor) {
  void* const memory =
      mmap(nullptr, sizeof(FutexPage), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return SystemError("mmap");
  return static_cast<FutexPage*>(memory);
}

}  // namespace

size_t ColdBytes() {
  const int64_t level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const size_t cache = level3 > 0 ? static_cast<size_t>(level3) : kUsualCacheBytes;
  return std::min(4 * cache, kMaxColdBytes);
}

MemoryCopy::MemoryCopy() : target_(ColdBytes()) {
  BytesBuilder source(target_.size());
  // Written, so that every page is there.
  std::memset(source.data(), 1, source.size());
  std::memset(target_.data(), 2, target_.size());
  source_ = std::move(source).Share();
}

Throughput MemoryCopy::Measure(int64_t message_bytes, absl::Duration duration) {
  const size_t bytes = static_cast<size_t>(message_bytes);
  const Clock& clock = Clock::Monotonic();
  // Clocks cost more than small copies: look once in so many.
  const size_t per_look = std::max<size_t>(1, (size_t{1} << 20) / bytes);
  const double cpu_before = ProcessCpuSeconds();
  const absl::Duration start = clock.Now();
  size_t offset = 0;
  Throughput throughput;
  while (clock.Now() - start < duration) {
    for (size_t i = 0; i < per_look; ++i) {
      if (offset + bytes > target_.size()) offset = 0;
      std::memcpy(target_.data() + offset, source_.data() + offset, bytes);
      offset += bytes;
    }
    throughput.bytes += static_cast<double>(per_look * bytes);
  }
  throughput.seconds = absl::ToDoubleSeconds(clock.Now() - start);
  throughput.cpu_seconds = ProcessCpuSeconds() - cpu_before;
  return throughput;
}

absl::StatusOr<std::unique_ptr<FutexPing>> FutexPing::Make() {
  OwnedFd descriptor(memfd_create("moebius-bench", MFD_CLOEXEC));
  if (descriptor.fd() < 0) return SystemError("memfd_create");
  if (ftruncate(descriptor.fd(), sizeof(FutexPage)) != 0) return SystemError("ftruncate");
  MOEBIUS_ASSIGN_OR_RETURN(FutexPage * page, MapPage(descriptor.fd()));
  return std::unique_ptr<FutexPing>(new FutexPing(std::move(descriptor), page));
}

FutexPing::~FutexPing() { munmap(page_, sizeof(FutexPage)); }

absl::StatusOr<absl::Duration> FutexPing::Measure(absl::Duration duration) {
  const Clock& clock = Clock::Monotonic();
  const absl::Duration start = clock.Now();
  absl::Duration now = start;
  int64_t count = 0;
  while (now - start < duration) {
    page_->ping.store(++round_);
    FutexWake(page_->ping);
    while (page_->pong.load() != round_) {
      if (clock.Now() - start > duration + kBenchPatience) {
        return absl::DeadlineExceededError("the other process does not answer pings");
      }
      FutexWait(page_->pong, round_ - 1);
    }
    ++count;
    now = clock.Now();
  }
  return (now - start) / count;
}

absl::Status AnswerFutexPings(int descriptor, const std::atomic<bool>& stopping) {
  const absl::StatusOr<FutexPage*> mapped = MapPage(descriptor);
  if (!mapped.ok()) return mapped.status();
  FutexPage& page = **mapped;
  uint32_t seen = 0;
  while (!stopping.load()) {
    FutexWait(page.ping, seen);
    const uint32_t ping = page.ping.load();
    if (ping == seen) continue;
    seen = ping;
    page.pong.store(ping);
    FutexWake(page.pong);
  }
  munmap(&page, sizeof(FutexPage));
  return absl::OkStatus();
}

}  // namespace moebius
