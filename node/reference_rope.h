// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "moebius/model/model_config.h"

namespace moebius {

/// Rotary position embedding of the reference path (Su et al., "RoFormer", 2021; YaRN: Peng et al.,
/// 2023). An angle is fp32(position · frequency), its cosine and sine are taken in double and
/// rounded to fp32: the rule of docs/numerics.md, stated here a second time on purpose.
///
/// Immutable; any number of threads at once.
class ReferenceRope {
 public:
  ReferenceRope() = default;
  /// `amplitude` multiplies cosines and sines.
  ReferenceRope(const RopeConfig& config, float amplitude);

  /// Fills `cosines` and `sines`, [dim / 2] each.
  void AnglesAt(int64_t position, absl::Span<float> cosines, absl::Span<float> sines) const;

  /// Rotates `head` [dim] in place.
  void Rotate(absl::Span<const float> cosines, absl::Span<const float> sines,
              absl::Span<float> head) const;

  int64_t num_pairs() const { return static_cast<int64_t>(frequencies_.size()); }

 private:
  RopePairing pairing_ = RopePairing::kHalves;
  float amplitude_ = 1.0f;
  std::vector<float> frequencies_;  // [dim / 2]
};

}  // namespace moebius
