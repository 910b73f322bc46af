// SPDX-License-Identifier: Apache-2.0
#include "expert_service/rpc/expert_rpc.h"

#include "moebius/rpc/unary_call.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::expert::v1;

constexpr size_t kMaxWaitingCalls = 16;
constexpr absl::Duration kMaxDrain = absl::Minutes(10);

}  // namespace

ExpertRpc::ExpertRpc(ExpertControl& control)
    : control_(control), reading_(1, kMaxWaitingCalls), draining_(1, kMaxWaitingCalls) {}

grpc::ServerUnaryReactor* ExpertRpc::Describe(grpc::CallbackServerContext* context,
                                              const pb::DescribeRequest*,
                                              pb::DescribeResponse* response) {
  return RunOnPool(context, reading_, [this, response] {
    const ExpertDescription description = control_.Describe();
    SetDescription(description, response);
    for (const HeldExpert& held : description.held) {
      response->add_held_layers(held.layer.value());
      response->add_held_experts(held.id.value());
    }
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ExpertRpc::Drain(grpc::CallbackServerContext* context,
                                           const pb::DrainRequest*, pb::DrainResponse*) {
  return RunOnPool(context, draining_,
                   [this, context] { return control_.DrainWithin(TimeLeft(*context, kMaxDrain)); });
}

grpc::ServerUnaryReactor* ExpertRpc::GetExpertLoad(grpc::CallbackServerContext* context,
                                                   const pb::GetExpertLoadRequest*,
                                                   pb::GetExpertLoadResponse* response) {
  return RunOnPool(context, reading_, [this, response] {
    const ComputedLoad load = control_.Load();
    response->mutable_layer_ids()->Add(load.layer_ids.begin(), load.layer_ids.end());
    response->set_num_experts(load.num_experts);
    response->mutable_computed()->Add(load.computed.begin(), load.computed.end());
    return absl::OkStatus();
  });
}

}  // namespace moebius
