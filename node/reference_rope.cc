// SPDX-License-Identifier: Apache-2.0
#include "node/reference_rope.h"

#include <algorithm>
#include <cmath>

#include "moebius/base/check.h"

namespace moebius {
namespace {

constexpr double kPi = 3.14159265358979323846;

// The pair index at which a frequency turns `num_rotations` times over the original context.
double PairOfRotations(double num_rotations, const RopeConfig& config) {
  const double positions = static_cast<double>(config.yarn->original_max_positions);
  return config.dim * std::log(positions / (num_rotations * 2 * kPi)) /
         (2 * std::log(config.theta));
}

// Each step is rounded to fp32, as the implementations that trained the models do: an ulp of a
// frequency is 1e-3 rad at position 10,000.
std::vector<float> Frequencies(const RopeConfig& config) {
  std::vector<float> frequencies(static_cast<size_t>(config.dim / 2));
  float low = 0, high = 0;
  if (config.yarn.has_value()) {
    low = static_cast<float>(
        std::max(std::floor(PairOfRotations(config.yarn->beta_fast, config)), 0.0));
    high = static_cast<float>(
        std::min(std::ceil(PairOfRotations(config.yarn->beta_slow, config)), config.dim - 1.0));
    if (low == high) high += 0.001f;
  }
  for (size_t pair = 0; pair < frequencies.size(); ++pair) {
    const float exponent = static_cast<float>(2 * pair) / static_cast<float>(config.dim);
    const float period = static_cast<float>(std::pow(config.theta, exponent));
    frequencies[pair] = 1.0f / period;
    if (config.yarn.has_value()) {
      const float stretched = 1.0f / (static_cast<float>(config.yarn->factor) * period);
      const float ramp = std::clamp((static_cast<float>(pair) - low) / (high - low), 0.0f, 1.0f);
      const float keep = 1.0f - ramp;
      frequencies[pair] = stretched * (1.0f - keep) + frequencies[pair] * keep;
    }
  }
  return frequencies;
}

}  // namespace

ReferenceRope::ReferenceRope(const RopeConfig& config, float amplitude)
    : pairing_(config.pairing), amplitude_(amplitude), frequencies_(Frequencies(config)) {}

void ReferenceRope::AnglesAt(int64_t position, absl::Span<float> cosines,
                             absl::Span<float> sines) const {
  for (size_t pair = 0; pair < frequencies_.size(); ++pair) {
    const float angle = static_cast<float>(position) * frequencies_[pair];
    cosines[pair] = static_cast<float>(std::cos(static_cast<double>(angle))) * amplitude_;
    sines[pair] = static_cast<float>(std::sin(static_cast<double>(angle))) * amplitude_;
  }
}

void ReferenceRope::Rotate(absl::Span<const float> cosines, absl::Span<const float> sines,
                           absl::Span<float> head) const {
  const size_t pairs = frequencies_.size();
  MOEBIUS_CHECK_EQ(head.size(), 2 * pairs);
  for (size_t pair = 0; pair < pairs; ++pair) {
    const bool interleaved = pairing_ == RopePairing::kInterleaved;
    float& first = head[interleaved ? 2 * pair : pair];
    float& second = head[interleaved ? 2 * pair + 1 : pair + pairs];
    const float x = first, y = second;
    first = x * cosines[pair] - y * sines[pair];
    second = y * cosines[pair] + x * sines[pair];
  }
}

}  // namespace moebius
