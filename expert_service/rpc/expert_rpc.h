// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "expert_service/control.h"
#include "moebius/rpc/worker_pool.h"
#include "proto/moebius/api/expert/v1/expert.grpc.pb.h"

namespace moebius {

/// The service ExpertControl over what the process does. Thread-safe; outlives the server that it
/// is registered with.
class ExpertRpc final : public moebius::api::expert::v1::ExpertControl::CallbackService {
 public:
  /// Borrows `control`.
  explicit ExpertRpc(ExpertControl& control);

  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* context,
                                     const moebius::api::expert::v1::DescribeRequest* request,
                                     moebius::api::expert::v1::DescribeResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const moebius::api::expert::v1::DrainRequest* request,
                                  moebius::api::expert::v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* GetExpertLoad(
      grpc::CallbackServerContext* context,
      const moebius::api::expert::v1::GetExpertLoadRequest* request,
      moebius::api::expert::v1::GetExpertLoadResponse* response) override;

 private:
  ExpertControl& control_;
  WorkerPool reading_;
  WorkerPool draining_;  // apart: it waits
};

}  // namespace moebius
