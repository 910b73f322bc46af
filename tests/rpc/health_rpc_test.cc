// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/health_rpc.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <atomic>

#include "gtest/gtest.h"

#include "moebius/rpc/rpc_server.h"

namespace moebius {
namespace {

namespace pb = ::grpc::health::v1;

class HealthRpcTest : public testing::Test {
 protected:
  HealthRpcTest()
      : health_([this](const std::string& name) -> std::optional<bool> {
          if (name.empty()) return well_.load();
          if (name == "liveness") return true;
          return std::nullopt;
        }) {
    RpcServerOptions options;
    options.listen = {"127.0.0.1", 0};
    server_ = *RpcServer::Start(options, health_, {});
    stub_ = pb::Health::NewStub(
        grpc::CreateChannel(FormatAddress(server_->address()), grpc::InsecureChannelCredentials()));
  }

  grpc::Status Check(const std::string& name, pb::HealthCheckResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    pb::HealthCheckRequest request;
    request.set_service(name);
    return stub_->Check(&context, request, response);
  }

  std::atomic<bool> well_{false};
  HealthRpc health_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<pb::Health::Stub> stub_;
};

TEST_F(HealthRpcTest, TellsWhatTheSourceSaysAtThatMoment) {
  pb::HealthCheckResponse response;
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), pb::HealthCheckResponse::NOT_SERVING);
  well_ = true;
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), pb::HealthCheckResponse::SERVING);
  ASSERT_TRUE(Check("liveness", &response).ok());
  EXPECT_EQ(response.status(), pb::HealthCheckResponse::SERVING);
  EXPECT_EQ(Check("other", &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthRpcTest, TellsWatchersOfEachChangeAndOfTheEnd) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto reader = stub_->Watch(&context, pb::HealthCheckRequest());
  pb::HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), pb::HealthCheckResponse::NOT_SERVING);
  well_ = true;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), pb::HealthCheckResponse::SERVING);
  server_->Shutdown(absl::Seconds(20));  // does not wait for watchers
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(HealthRpcTest, WatchesANameThatThereIsNot) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  pb::HealthCheckRequest request;
  request.set_service("other");
  const auto reader = stub_->Watch(&context, request);
  pb::HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), pb::HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  reader->Finish();
}

}  // namespace
}  // namespace moebius
