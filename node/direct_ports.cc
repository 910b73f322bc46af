// SPDX-License-Identifier: Apache-2.0
#include "node/direct_ports.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {

KvPool DirectAttention::kv_pool() const {
  const KvUsage usage = pipeline_.usage();
  return KvPool{usage.block_tokens, usage.num_blocks, usage.used_blocks};
}

absl::Status DirectExperts::Forward(LayerId layer, const DispatchPlan& plan, ForwardCall,
                                    Bf16Rows rows, absl::Span<const MutableBf16Rows> replies,
                                    std::vector<ServiceId>* failed) {
  failed->clear();
  MOEBIUS_CHECK_EQ(plan.services().size(), pipelines_.size());
  absl::Status status;
  executor_.Run([&] {
    for (size_t service = 0; service < pipelines_.size() && status.ok(); ++service) {
      const ServiceDispatch& dispatch = plan.services()[service];
      if (dispatch.num_rows() == 0) continue;
      status = pipelines_[service]->Forward(layer, dispatch, rows, replies[service]);
    }
  });
  return status;
}

}  // namespace moebius
