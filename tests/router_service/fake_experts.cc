// SPDX-License-Identifier: Apache-2.0
#include "tests/router_service/fake_experts.h"

#include <algorithm>
#include <limits>

#include "moebius/routing/combine.h"
#include "moebius/routing/dispatch_plan.h"

namespace moebius {

void FakeExperts::Name(const std::string& call) {
  if (names != nullptr) names->push_back(call);
}

absl::Status FakeExperts::BeginStep(const StepPlan&) {
  Name("begin experts");
  return absl::OkStatus();
}

void FakeExperts::EndStep() { Name("end experts"); }

absl::Status FakeExperts::Forward(LayerId layer, const DispatchPlan& plan, ForwardCall asked,
                                  Bf16Rows rows, absl::Span<const MutableBf16Rows> replies,
                                  std::vector<ServiceId>* failed) {
  Name("experts " + std::to_string(layer.value()));
  if (!status.ok()) return status;
  const std::set<int32_t> failing =
      fails == nullptr ? std::set<int32_t>() : fails(layer.value(), asked.number);
  Call call;
  call.layer = layer.value();
  call.number = asked.number;
  call.is_resend = asked.is_resend;
  call.plan_rows = plan.num_rows();
  call.served = plan.counts().served;
  call.dropped = plan.counts().dropped;
  for (size_t service = 0; service < replies.size(); ++service) {
    call.service_rows.push_back(plan.services()[service].num_rows());
    if (failing.count(static_cast<int32_t>(service)) == 0) {
      MultiplyRows(kernels_, plan.services()[service], rows, replies[service]);
      continue;
    }
    failed->push_back(ServiceId(static_cast<int32_t>(service)));
    for (int64_t row = 0; row < replies[service].num_rows; ++row) {
      for (Bf16& value : replies[service].span(row)) {
        value = ToBf16(std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  calls.push_back(call);
  return absl::OkStatus();
}

void MultiplyRows(const Kernels& kernels, const ServiceDispatch& dispatch, Bf16Rows rows,
                  MutableBf16Rows replies) {
  int64_t reply = -1;
  std::vector<std::vector<Bf16>> outputs(dispatch.expert_ids.size());
  std::vector<std::vector<size_t>> terms(static_cast<size_t>(dispatch.num_reply_rows));
  for (int64_t row = 0; row < dispatch.num_rows(); ++row) {
    const size_t index = static_cast<size_t>(row);
    for (int64_t at = dispatch.row_begin[index]; at < dispatch.row_begin[index + 1]; ++at) {
      const size_t assignment = static_cast<size_t>(at);
      const Bf16* input = rows.row(dispatch.row_ids[index]);
      const float factor = static_cast<float>(dispatch.expert_ids[assignment] + 1) / 32;
      for (int64_t column = 0; column < rows.width; ++column) {
        outputs[assignment].push_back(ToBf16(ToFloat(input[column]) * factor));
      }
      if (dispatch.joins_previous[assignment] == 0) ++reply;
      terms[static_cast<size_t>(reply)].push_back(assignment);
    }
  }
  for (size_t row = 0; row < terms.size(); ++row) {
    std::vector<SumTerm> sum;
    for (const size_t at : terms[row]) sum.push_back({dispatch.weights[at], outputs[at].data()});
    const absl::Span<Bf16> out = replies.span(static_cast<int64_t>(row));
    if (sum.size() == 1) {
      std::copy(outputs[terms[row][0]].begin(), outputs[terms[row][0]].end(), out.begin());
    } else {
      SumTerms(kernels, sum, out);
    }
  }
}

}  // namespace moebius
