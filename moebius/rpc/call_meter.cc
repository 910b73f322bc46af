// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/call_meter.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/server_interceptor.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

#include "moebius/base/clock.h"
#include "moebius/wire/grpc/grpc_status.h"

namespace moebius {
namespace {

std::vector<std::string> MethodNames(const google::protobuf::ServiceDescriptor& service) {
  std::vector<std::string> names;
  for (int index = 0; index < service.method_count(); ++index) {
    names.push_back(service.method(index)->name());
  }
  return names;
}

// A known method whose request gRPC could not parse is answered by gRPC, as if there were no such
// method.
bool IsUnreadRequest(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty();
}

/// One call, from its first sign to the end of its context.
class CountedCall final : public grpc::experimental::Interceptor {
 public:
  CountedCall(RequestMetrics& metrics, size_t method)
      : metrics_(metrics), method_(method), begin_(Clock::Monotonic().Now()) {
    metrics_.OnStarted(method_);
  }
  ~CountedCall() override { metrics_.OnEnded(method_, code_, Clock::Monotonic().Now() - begin_); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* batch) override {
    using Point = grpc::experimental::InterceptionHookPoints;
    if (batch->QueryInterceptionHookPoint(Point::PRE_SEND_STATUS)) {
      grpc::Status status = batch->GetSendStatus();
      if (IsUnreadRequest(status)) {
        status = ToGrpcStatus(absl::InvalidArgumentError("the request is no message of its type"));
        batch->ModifySendStatus(status);
      }
      code_ = static_cast<absl::StatusCode>(status.error_code());
    }
    batch->Proceed();
  }

 private:
  RequestMetrics& metrics_;
  const size_t method_;
  const absl::Duration begin_;
  absl::StatusCode code_ = absl::StatusCode::kCancelled;  // until a status is sent
};

class CountedCalls final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CountedCalls(const google::protobuf::ServiceDescriptor& service, RequestMetrics& metrics)
      : service_(service), metrics_(metrics) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    absl::string_view name = info->method() == nullptr ? "" : info->method();
    if (!absl::ConsumePrefix(&name, "/") || !absl::ConsumePrefix(&name, service_.full_name()) ||
        !absl::ConsumePrefix(&name, "/")) {
      return nullptr;
    }
    const auto* const method = service_.FindMethodByName(std::string(name));
    if (method == nullptr) return nullptr;
    return new CountedCall(metrics_, static_cast<size_t>(method->index()));  // gRPC owns it
  }

 private:
  const google::protobuf::ServiceDescriptor& service_;
  RequestMetrics& metrics_;
};

}  // namespace

CallMeter::CallMeter(const std::string& label, const google::protobuf::ServiceDescriptor& service)
    : service_(service), metrics_(label, MethodNames(service)) {}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
CallMeter::MakeInterceptors() {
  return std::make_unique<CountedCalls>(service_, metrics_);
}

}  // namespace moebius
