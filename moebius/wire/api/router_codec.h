// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"

#include "moebius/api/bias.h"
#include "moebius/api/generate.h"
#include "moebius/api/placement_table.h"
#include "moebius/api/route.h"
#include "moebius/api/router_info.h"
#include "proto/moebius/api/router/v1/router.pb.h"

/// The public contract's values and their messages, both ways: the router's RPCs read and write
/// with it what clients write and read. `FromProto` checks shapes that the message alone decides
/// (INVALID_ARGUMENT); ranges are the router's to judge.
namespace moebius {

namespace router_pb = ::moebius::api::router::v1;

void ToProto(const GenerateRequest& request, router_pb::GenerateRequest* out);
absl::StatusOr<GenerateRequest> FromProto(const router_pb::GenerateRequest& in);

void ToProto(const GenerateEvent& event, router_pb::GenerateResponse* out);
absl::StatusOr<GenerateEvent> FromProto(const router_pb::GenerateResponse& in);

void ToProto(const RouteRequest& request, router_pb::RouteRequest* out);
RouteRequest FromProto(const router_pb::RouteRequest& in);
void ToProto(const RouteAnswer& answer, router_pb::RouteResponse* out);
absl::StatusOr<RouteAnswer> FromProto(const router_pb::RouteResponse& in);

void ToProto(ForwardRequest request, router_pb::ForwardRequest* out);
absl::StatusOr<ForwardRequest> FromProto(router_pb::ForwardRequest in);
void ToProto(ForwardAnswer answer, router_pb::ForwardResponse* out);
absl::StatusOr<ForwardAnswer> FromProto(router_pb::ForwardResponse in);

/// The seed too, where the message is an answer's; max_tokens is no sampling parameter.
void ToProto(const SamplingParams& sampling, router_pb::EffectiveSampling* out);
SamplingParams FromProto(const router_pb::EffectiveSampling& in);

void ToProto(const Exactness& exactness, router_pb::Exactness* out);
Exactness FromProto(const router_pb::Exactness& in);

void ToProto(const StepFigures& figures, router_pb::StepFigures* out);
StepFigures FromProto(const router_pb::StepFigures& in);

void ToProto(const ModelInfo& info, router_pb::GetModelInfoResponse* out);
ModelInfo FromProto(const router_pb::GetModelInfoResponse& in);
void ToProto(const ServerInfo& info, router_pb::GetServerInfoResponse* out);
ServerInfo FromProto(const router_pb::GetServerInfoResponse& in);
void ToProto(const ExpertLoadTable& table, router_pb::GetExpertLoadResponse* out);
absl::StatusOr<ExpertLoadTable> FromProto(const router_pb::GetExpertLoadResponse& in);
void ToProto(const BiasTable& table, router_pb::GetBiasResponse* out);
absl::StatusOr<BiasTable> FromProto(const router_pb::GetBiasResponse& in);
void ToProto(const BiasUpdate& update, router_pb::UpdateBiasRequest* out);
BiasUpdate FromProto(const router_pb::UpdateBiasRequest& in);
void ToProto(const PlacementTable& table, router_pb::GetPlacementResponse* out);
absl::StatusOr<PlacementTable> FromProto(const router_pb::GetPlacementResponse& in);
void ToProto(const Explanation& explanation, router_pb::ExplainResponse* out);
absl::StatusOr<Explanation> FromProto(const router_pb::ExplainResponse& in);

}  // namespace moebius
