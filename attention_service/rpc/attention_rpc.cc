// SPDX-License-Identifier: Apache-2.0
#include "attention_service/rpc/attention_rpc.h"

#include "moebius/rpc/unary_call.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::attention::v1;

constexpr size_t kMaxWaitingCalls = 16;

}  // namespace

AttentionRpc::AttentionRpc(AttentionControl& control)
    : control_(control), reading_(1, kMaxWaitingCalls) {}

grpc::ServerUnaryReactor* AttentionRpc::Describe(grpc::CallbackServerContext* context,
                                                 const pb::DescribeRequest*,
                                                 pb::DescribeResponse* response) {
  return RunOnPool(context, reading_, [this, response] {
    const AttentionDescription description = control_.Describe();
    SetDescription(description, response);
    response->set_kv_block_tokens(description.kv_block_tokens);
    response->set_kv_num_blocks(description.kv_num_blocks);
    response->set_kv_used_blocks(description.kv_used_blocks);
    response->set_sessions(description.sessions);
    return absl::OkStatus();
  });
}

}  // namespace moebius
