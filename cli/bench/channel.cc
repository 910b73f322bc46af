// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/channel.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "moebius/base/random.h"

namespace moebius {
namespace {

constexpr size_t kPoolBytes = size_t{4} << 20;

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

}  // namespace

double ProcessCpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
}

PayloadPool::PayloadPool(int64_t message_bytes)
    : message_bytes_(static_cast<size_t>(message_bytes)) {
  BytesBuilder builder(std::max(kPoolBytes, message_bytes_));
  Random random(kPayloadSeed);
  for (size_t i = 0; i + sizeof(uint64_t) <= builder.size(); i += sizeof(uint64_t)) {
    const uint64_t bits = random.Bits();
    std::memcpy(builder.data() + i, &bits, sizeof(bits));
  }
  memory_ = std::move(builder).Share();
}

SharedBytes PayloadPool::Next() {
  if (next_ + message_bytes_ > memory_.size()) next_ = 0;
  const size_t begin = std::exchange(next_, next_ + message_bytes_);
  return memory_.Slice(begin, begin + message_bytes_);
}

}  // namespace moebius
