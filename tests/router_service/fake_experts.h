// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "moebius/kernels/kernels.h"
#include "moebius/routing/dispatch.h"
#include "router_service/ports.h"

namespace moebius {

/// Stands for ExpertPipeline::Forward without weights: expert e multiplies its row by (e + 1) / 32.
void MultiplyRows(const Kernels& kernels, const ServiceDispatch& dispatch, Bf16Rows rows,
                  MutableBf16Rows replies);

/// Expert services of this process that answer by MultiplyRows. What a failed
/// service leaves in its replies is not a number, so that a row that keeps any of it shows.
class FakeExperts final : public ExpertPort {
 public:
  explicit FakeExperts(const Kernels& kernels) : kernels_(kernels) {}

  /// One call of Forward.
  struct Call {
    int32_t layer = 0;
    int32_t number = 0;
    bool is_resend = false;
    int64_t plan_rows = 0;
    std::vector<int64_t> service_rows;  // by service
    int64_t served = 0;                 // assignments
    int64_t dropped = 0;
  };

  absl::Status BeginStep(const StepPlan&) override;
  absl::Span<const uint8_t> usable_services() const override { return usable; }
  absl::Status Forward(LayerId layer, const DispatchPlan& plan, ForwardCall call, Bf16Rows rows,
                       absl::Span<const MutableBf16Rows> replies,
                       std::vector<ServiceId>* failed) override;
  void EndStep() override;

  /// Which services fail, by layer and number of the call; none where it is empty.
  std::function<std::set<int32_t>(int32_t layer, int32_t number)> fails;
  std::vector<uint8_t> usable;
  /// Of Forward, when it is not OK.
  absl::Status status;

  std::vector<Call> calls;
  std::vector<std::string>* names = nullptr;  // of all calls, where wanted

 private:
  void Name(const std::string& call);
  const Kernels& kernels_;
};

}  // namespace moebius
