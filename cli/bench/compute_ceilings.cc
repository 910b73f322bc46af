// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/compute_ceilings.h"

#include <algorithm>

#include "cli/bench/ceilings.h"

#include "moebius/base/clock.h"

namespace moebius {
namespace {

constexpr int64_t kParts = 64;
constexpr size_t kSumsPerPart = 8;

}  // namespace

double MeanSeconds(absl::Duration duration, absl::FunctionRef<void()> body) {
  const Clock& clock = Clock::Monotonic();
  const absl::Duration start = clock.Now();
  int64_t runs = 0;
  absl::Duration taken;
  do {
    body();
    ++runs;
    taken = clock.Now() - start;
  } while (taken < duration);
  return absl::ToDoubleSeconds(taken) / static_cast<double>(runs);
}

MemoryRead::MemoryRead(Executor& executor)
    : executor_(executor), memory_(ColdBytes()), sums_(kParts * kSumsPerPart) {}

double MemoryRead::Measure(absl::Duration duration) {
  const uint64_t* const words = static_cast<const uint64_t*>(memory_.data());
  // Whole rounds of sums.
  const int64_t part_words = static_cast<int64_t>(memory_.size_bytes() / sizeof(uint64_t) / kParts /
                                                  kSumsPerPart * kSumsPerPart);
  double seconds = 0;
  executor_.Run([&] {
    seconds = MeanSeconds(duration, [&] {
      executor_.ParallelFor(kParts, [&](int64_t part, int) {
        const uint64_t* const begin = words + part * part_words;
        uint64_t sums[kSumsPerPart] = {};
        for (int64_t i = 0; i < part_words; i += kSumsPerPart) {
#pragma GCC unroll 8
          for (size_t j = 0; j < kSumsPerPart; ++j) sums[j] += begin[i + static_cast<int64_t>(j)];
        }
        for (size_t j = 0; j < kSumsPerPart; ++j) {
          sums_[static_cast<size_t>(part) * kSumsPerPart + j] += sums[j];
        }
      });
    });
  });
  return static_cast<double>(part_words * kParts) * sizeof(uint64_t) / seconds;
}

double Roofline::Seconds(double bytes, double flops) const {
  const double reading = bytes / bytes_per_second;
  return flops_per_second > 0 ? std::max(reading, flops / flops_per_second) : reading;
}

}  // namespace moebius
