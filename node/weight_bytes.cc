// SPDX-License-Identifier: Apache-2.0
#include "node/weight_bytes.h"

#include "expert_service/expert_pipeline.h"
#include "moebius/base/check.h"
#include "moebius/model/quantization.h"

namespace moebius {

int64_t BytesBesideExperts(const Checkpoint& checkpoint) {
  const QuantizationConfig& quantization = checkpoint.config().quantization;
  int64_t bytes = 0;
  for (const Parameter& parameter : checkpoint.match().parameters) {
    if (parameter.key.part >= Part::kSharedGate) continue;
    int64_t elements = 1;
    for (const int64_t size : parameter.shape) elements *= size;
    // FP8: a scale for each output and group of inputs beside the codes.
    bytes += parameter.is_fp8()
                 ? elements + parameter.shape[0] * 4 * ScaleShape(quantization, parameter.shape)[1]
                 : elements * 2;
  }
  return bytes;
}

int64_t ExpertBytes(const Checkpoint& checkpoint, const Placement& placement) {
  int64_t bytes = 0;
  for (int32_t service = 0; service < placement.num_services(); ++service) {
    const auto held = ExpertPipeline::PackedBytes(checkpoint, placement.HeldBy(ServiceId(service)));
    MOEBIUS_CHECK(held.ok());
    bytes += *held;
  }
  return bytes;
}

int64_t ReplicasThatFit(const Checkpoint& checkpoint, int32_t num_services, int64_t kv_bytes,
                        const HostMemory& memory) {
  if (num_services < 2) return 1;
  const ModelConfig& config = checkpoint.config();
  StaticPlacementOptions options;
  options.num_services = num_services;
  options.expert_replicas = 2;
  const auto placement =
      Placement::Static(PlacementShape::Make(config.gate.num_experts, config.moe_layers,
                                             config.num_shared_experts, config.NumDenseSlices()),
                        options);
  if (!placement.ok()) return 1;
  const int64_t bytes = ExpertBytes(checkpoint, *placement) + BytesBesideExperts(checkpoint);
  return CheckFits(memory, bytes, kv_bytes).ok() ? 2 : 1;
}

}  // namespace moebius
