// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "moebius/model/checkpoint.h"
#include "moebius/telemetry/registry.h"
#include "router_service/bias_control.h"
#include "router_service/bias_file.h"
#include "router_service/config.h"
#include "router_service/router_weights.h"

namespace moebius {

/// The biases of a router as a process has them: their control, and the file that keeps them from
/// one start to the next where there is one.
///
/// control() and WriteMetrics are thread-safe; SaveIfChanged belongs to one thread.
class KeptBiases {
 public:
  /// What the flags say (which passed their validation), with what the file has. `on_notice` hears
  /// why a file cannot be written. Fails as BiasFile::Restore does.
  static absl::StatusOr<std::unique_ptr<KeptBiases>> Restore(
      const RouterFlags& flags, const Checkpoint& checkpoint, const RouterWeights& weights,
      std::function<void(const std::string&)> on_notice);

  BiasControl* control() const { return control_.get(); }
  /// Empty where none is kept.
  const std::string& path() const { return path_; }
  void SaveIfChanged();
  void WriteMetrics(MetricWriter& writer) const;

 private:
  KeptBiases() = default;

  std::string path_;
  std::unique_ptr<BiasControl> control_;
  std::unique_ptr<BiasFile> file_;
};

}  // namespace moebius
