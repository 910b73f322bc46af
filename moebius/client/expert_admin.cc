// SPDX-License-Identifier: Apache-2.0
#include "moebius/client/expert_admin.h"

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/client/channel.h"
#include "proto/moebius/api/expert/v1/expert.grpc.pb.h"

namespace moebius {

absl::Status DrainExpert(const ClientOptions& options) {
  namespace pb = ::moebius::api::expert::v1;
  MOEBIUS_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(options));
  const auto stub = pb::ExpertControl::NewStub(channel);
  grpc::ClientContext context;
  SetDeadline(&context, options.timeout);
  pb::DrainResponse response;
  return CallStatus(absl::StrCat("an expert service at ", options.target),
                    stub->Drain(&context, pb::DrainRequest(), &response));
}

}  // namespace moebius
