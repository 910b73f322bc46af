// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "moebius/base/gate_config.h"
#include "moebius/routing/assignments.h"
#include "moebius/tensor/rows.h"

namespace moebius {

/// How a window's demand moves a bias.
enum class BiasRule {
  kSign,          // b += γ · sign(mean − demand)
  kProportional,  // b += γ · clamp((mean − demand) / mean, −1, 1)
};

/// What γ is measured in.
enum class BiasUnit {
  kScore,   // as it is: sigmoid scores spread by about 0.2 whatever the number of experts
  kSpread,  // times spread / kUnitSpread: softmax scores are some 1/E, and a γ that is larger than
            // their distances only makes experts take turns
};
/// The ScoreSpread of a sigmoid gate with unit normal logits that chooses 8 of 256 experts, for
/// which γ = 0.001 was published: sigmoid(1.863) − sigmoid(1.534).
inline constexpr float kUnitSpread = 0.043f;

struct BiasOptions {
  BiasRule rule = BiasRule::kSign;
  BiasUnit unit = BiasUnit::kScore;
  float gamma = 0.001f;
  float limit = 0.5f;  // of |bias − base|
};

/// INVALID_ARGUMENT names the field: gamma and limit are finite and more than 0.
absl::Status ValidateBiasOptions(const BiasOptions& options);

/// The unit that fits a gate's score function.
BiasUnit BiasUnitOf(ScoreFunction function);

/// max/mean − 1 of a demand; 0 without any.
double MaxViolation(absl::Span<const int64_t> demand);

/// How far scores that compete are apart: the mean over rows of their k-th best score less their
/// 2k-th best (or last), before any bias. What γ is scaled by; hot experts far above all others do
/// not show in it. Rows that are not finite are left out; 0 without rows.
float ScoreSpread(const GateConfig& config, FloatRows logits);

/// Rows whose set of experts differs between two choices of the same rows.
int64_t CountChangedRows(const Assignments& a, const Assignments& b);

/// The biases of one layer's gate that even out its experts' load without an auxiliary loss: after
/// each window every expert's bias moves against its demand. A bias decides who is chosen and never
/// enters a weight. Demand is what the gate asked for under the bias at hand, before any capacity.
/// Source: Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts", 2024;
/// DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.1.2.
///
/// Invariants: |bias − base| <= limit, all finite, fp32; the version rises by one with every
/// change. A value; not thread-safe.
class BiasBalancer {
 public:
  /// `base` [E]: the checkpoint's biases, or zeros. The options are valid (CHECK).
  BiasBalancer(const BiasOptions& options, std::vector<float> base);

  absl::Span<const float> base() const { return base_; }
  absl::Span<const float> bias() const { return bias_; }
  uint64_t version() const { return version_; }
  /// Of the last window that was ended.
  double max_violation() const { return max_violation_; }
  /// max |bias − base|.
  float max_delta() const;

  /// Adds demand [E] to the window at hand, and the spread of its scores (ignored for kScore).
  void Observe(absl::Span<const int64_t> demand, float spread);
  /// Assignments in the window at hand.
  int64_t observed() const { return observed_; }
  /// Moves the biases by the window's demand and begins the next one. Without demand nothing moves,
  /// and the version stays.
  void EndWindow();

  /// Takes over biases [E] from elsewhere: a file, an operator, a training loop. INVALID_ARGUMENT,
  /// nothing changed: another number of experts, a value that is not finite or beyond the limit.
  absl::Status Set(absl::Span<const float> bias);
  /// Back to the base; the window at hand is forgotten.
  void Reset();

 private:
  BiasOptions options_;
  std::vector<float> base_;
  std::vector<float> bias_;
  std::vector<int64_t> demand_;  // of the window at hand
  int64_t observed_ = 0;
  double spread_sum_ = 0;  // weighted by assignments
  uint64_t version_ = 0;
  double max_violation_ = 0;
};

}  // namespace moebius
