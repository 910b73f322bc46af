// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/random.h"

#include <random>

namespace moebius {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio, SplitMix64's increment

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t RandomBits(uint64_t seed, uint64_t index) {
  return Mix(Mix(seed + kGolden) + (index + 1) * kGolden);
}

float RandomUnit(uint64_t seed, uint64_t index) {
  return static_cast<float>(RandomBits(seed, index) >> 40) * 0x1p-24f;
}

uint64_t Random::Below(uint64_t bound) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(Bits()) * bound) >> 64);
}

float Random::Normal() {
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) sum += Unit();
  return sum;
}

uint64_t SeedFromSystem() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace moebius
