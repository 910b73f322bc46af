// SPDX-License-Identifier: Apache-2.0
#include "router_service/kept_biases.h"

#include <utility>

#include "moebius/base/status.h"
#include "router_service/metrics.h"

namespace moebius {

absl::StatusOr<std::unique_ptr<KeptBiases>> KeptBiases::Restore(
    const RouterFlags& flags, const Checkpoint& checkpoint, const RouterWeights& weights,
    std::function<void(const std::string&)> on_notice) {
  std::unique_ptr<KeptBiases> biases(new KeptBiases());
  biases->control_ = MakeBiasControl(*BiasOptionsOf(flags), checkpoint, weights);
  if (biases->control_->mode() == BiasMode::kOff || flags.bias_file.empty()) return biases;
  biases->path_ = flags.bias_file;
  biases->file_ =
      std::make_unique<BiasFile>(biases->path_, biases->control_.get(), std::move(on_notice));
  MOEBIUS_RETURN_IF_ERROR(biases->file_->Restore());
  return biases;
}

void KeptBiases::SaveIfChanged() {
  if (file_ != nullptr) file_->SaveIfChanged();
}

void KeptBiases::WriteMetrics(MetricWriter& writer) const {
  WriteBiasMetrics(control_->Read(), file_ == nullptr ? 0 : file_->num_failures(), writer);
}

}  // namespace moebius
