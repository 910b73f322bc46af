// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "moebius/telemetry/registry.h"
#include "moebius/telemetry/request_metrics.h"

namespace google::protobuf {
class ServiceDescriptor;
}
namespace grpc::experimental {
class ServerInterceptorFactoryInterface;
}

namespace moebius {

/// Counts the calls of one gRPC service, on however many ports: those under way, and those that
/// ended by method and code. A call that ended without a status of ours, because its caller or its
/// connection had gone, counts as CANCELLED. A request that is no message of its method's type ends
/// as INVALID_ARGUMENT, where gRPC would say UNIMPLEMENTED. Thread-safe; outlives the servers that
/// it is given to.
class CallMeter {
 public:
  /// `label` names the service in metrics: "router".
  CallMeter(const std::string& label, const google::protobuf::ServiceDescriptor& service);

  void WriteMetrics(MetricWriter& writer) const { metrics_.WriteMetrics(writer); }

  /// For one server: sees each of its calls.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptors();

 private:
  const google::protobuf::ServiceDescriptor& service_;
  RequestMetrics metrics_;
};

}  // namespace moebius
