// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "gtest/gtest.h"

#include "moebius/base/check.h"
#include "moebius/transport/grpc/grpc_provider.h"
#include "tests/conformance/transport_world.h"

namespace moebius {
namespace {

class GrpcMedium final : public Medium {
 public:
  explicit GrpcMedium(const std::string& host) : host_(host) {
    GrpcOptions options;
    // All peers of a test are on one host, and a thousand of them are silent.
    options.max_connections = 2048;
    options.max_connections_per_address = 2048;
    options.max_polling_threads = 1;  // as in services: whoever waited in a callback would stop all
    auto provider = GrpcLinkProvider::Make(options, std::nullopt);
    MOEBIUS_CHECK(provider.ok());
    provider_ = *std::move(provider);
  }
  LinkProvider& provider() override { return *provider_; }
  Address listen_address() const override { return {host_, 0}; }
  bool takes_real_time() const override { return true; }

 private:
  const std::string host_;
  std::unique_ptr<GrpcLinkProvider> provider_;
};

MediumFactory Grpc() {
  return {"grpc", [](Reactor&) { return std::make_unique<GrpcMedium>("127.0.0.1"); }};
}

INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformance, ::testing::Values(Grpc()));

}  // namespace
}  // namespace moebius
