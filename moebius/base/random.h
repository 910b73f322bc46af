// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moebius {

/// 64 random bits that depend on (seed, index) alone: the same on every machine and compiler, in
/// any order of calls. Two rounds of SplitMix64's finaliser over the mixed key.
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
uint64_t RandomBits(uint64_t seed, uint64_t index);

/// Uniform in [0, 1) with 24 bits, exact in fp32.
float RandomUnit(uint64_t seed, uint64_t index);

/// A sequence of such numbers. Not thread-safe; copies continue independently.
class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint64_t Bits() { return RandomBits(seed_, index_++); }
  float Unit() { return RandomUnit(seed_, index_++); }
  /// Uniform in [0, bound), bound >= 1, without modulo bias worth a bit in 2^32.
  uint64_t Below(uint64_t bound);
  /// Approximately standard normal: the sum of twelve uniforms minus six (no libm, same bits).
  float Normal();

 private:
  uint64_t seed_;
  uint64_t index_ = 0;
};

/// A seed from the operating system, for requests that bring none.
uint64_t SeedFromSystem();

}  // namespace moebius
