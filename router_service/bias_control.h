// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/api/bias.h"
#include "moebius/base/gate_config.h"
#include "moebius/base/mutex.h"
#include "moebius/base/strong_id.h"
#include "moebius/model/checkpoint.h"
#include "moebius/routing/bias_balancer.h"
#include "router_service/router_weights.h"

namespace moebius {

/// What a router does with the bias balancer.
enum class BiasMode {
  kOff,     // the checkpoint's biases; answers are exact
  kShadow,  // moves biases of its own beside them, and tells what they would change; answers stay
  kOn,      // chooses experts by the moved biases, and every answer says so
};
/// "off", "shadow", "on".
absl::string_view BiasModeName(BiasMode mode);
/// INVALID_ARGUMENT for any other text.
absl::StatusOr<BiasMode> ParseBiasMode(absl::string_view text);

struct BiasControlOptions {
  BiasMode mode = BiasMode::kOff;
  BiasOptions balancer;   // the unit follows the gate's score function
  int64_t window = 2000;  // assignments per expert after which biases move; 0: only by Update
};

/// All gates' biases at one version. Immutable; steps hold it while they run.
struct BiasSnapshot {
  uint64_t version = 0;
  std::vector<std::vector<float>> layers;  // [num_layers][E]; empty without experts
};

/// What one step showed of one layer's gate under a snapshot's biases.
struct BiasObservation {
  LayerId layer;
  std::vector<int64_t> demand;  // [E]: under these biases, whether they were in force or not
  float spread = 0;             // ScoreSpread of its rows, where the unit needs it
  int64_t num_rows = 0;
  int64_t changed_rows = 0;  // whose experts these biases change; in shadow mode
};

/// The biases of a router's gates: one balancer for each layer with experts, moved by windows of
/// traffic or by an operator, told, and saved by whoever asks for SavedState.
///
/// Invariants:
/// 1. A step runs under one snapshot; a window's demand was made under the biases that it moves.
/// 2. |bias − base| <= limit; the version rises by one with every change.
/// 3. An update is applied as a whole or not at all.
///
/// Thread-safe.
class BiasControl {
 public:
  /// `base` [num_layers]: the checkpoint's biases of each layer [E], zeros where it has none, empty
  /// without experts. The options are valid (CHECK).
  BiasControl(const BiasControlOptions& options, const GateConfig& gate,
              std::vector<std::vector<float>> base, std::string model_hash);

  BiasMode mode() const { return options_.mode; }
  /// Whether observations need ScoreSpread.
  bool needs_spread() const { return options_.balancer.unit == BiasUnit::kSpread; }

  /// What the next step runs under; null in mode off.
  std::shared_ptr<const BiasSnapshot> Current() const MOEBIUS_EXCLUDES(mutex_);

  /// Adds what a step that has served showed under `version`; ignored when the biases have changed
  /// meanwhile. Ends the window when it is full.
  void Observe(uint64_t version, absl::Span<const BiasObservation> step) MOEBIUS_EXCLUDES(mutex_);

  BiasTable Read() const MOEBIUS_EXCLUDES(mutex_);
  uint64_t version() const MOEBIUS_EXCLUDES(mutex_);

  /// FAILED_PRECONDITION in mode off. INVALID_ARGUMENT: not exactly one kind of change, an unknown
  /// layer, another number of experts, a value beyond the limit. ABORTED: another expected_version.
  absl::Status Update(const BiasUpdate& update) MOEBIUS_EXCLUDES(mutex_);

  /// Takes over what was saved, before the first step. FAILED_PRECONDITION naming both for another
  /// model; INVALID_ARGUMENT as Update. In mode off a no-op.
  absl::Status Restore(const BiasTable& saved) MOEBIUS_EXCLUDES(mutex_);

 private:
  struct Layer {
    BiasBalancer balancer;
    int64_t rows = 0;
    int64_t changed_rows = 0;  // in the window at hand
    double changed_ratio = 0;  // of the last window
  };

  absl::Status Apply(const BiasUpdate& update, std::vector<Layer>& layers) const
      MOEBIUS_REQUIRES(mutex_);
  absl::StatusOr<size_t> IndexOf(int32_t layer) const;
  void Publish() MOEBIUS_REQUIRES(mutex_);
  int64_t ObservedPerExpert() const MOEBIUS_REQUIRES(mutex_);
  void EndWindow() MOEBIUS_REQUIRES(mutex_);

  const BiasControlOptions options_;
  const int64_t num_layers_;
  const int64_t num_experts_;
  const std::string model_hash_;
  std::vector<int32_t> layer_ids_;  // with experts

  mutable Mutex mutex_;
  std::vector<Layer> layers_ MOEBIUS_GUARDED_BY(mutex_);  // beside layer_ids_
  uint64_t version_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const BiasSnapshot> snapshot_ MOEBIUS_GUARDED_BY(mutex_);
};

/// The control of a model's gates.
std::unique_ptr<BiasControl> MakeBiasControl(const BiasControlOptions& options,
                                             const Checkpoint& checkpoint,
                                             const RouterWeights& weights);

/// INVALID_ARGUMENT names the field.
absl::Status ValidateBiasControl(const BiasControlOptions& options);

}  // namespace moebius
