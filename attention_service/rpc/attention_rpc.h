// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention_service/control.h"
#include "moebius/rpc/worker_pool.h"
#include "proto/moebius/api/attention/v1/attention.grpc.pb.h"

namespace moebius {

/// The service AttentionControl over what the process does. Thread-safe; outlives the server that
/// it is registered with.
class AttentionRpc final : public moebius::api::attention::v1::AttentionControl::CallbackService {
 public:
  /// Borrows `control`.
  explicit AttentionRpc(AttentionControl& control);

  grpc::ServerUnaryReactor* Describe(
      grpc::CallbackServerContext* context,
      const moebius::api::attention::v1::DescribeRequest* request,
      moebius::api::attention::v1::DescribeResponse* response) override;

 private:
  AttentionControl& control_;
  WorkerPool reading_;
};

}  // namespace moebius
