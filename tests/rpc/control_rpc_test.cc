// SPDX-License-Identifier: Apache-2.0
// The admin services of experts and attention ranks, over real ports.
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "attention_service/rpc/attention_rpc.h"
#include "expert_service/rpc/expert_rpc.h"
#include "moebius/rpc/rpc_server.h"
#include "tests/rpc/admin_port.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;

class FakeExpert final : public ExpertControl {
 public:
  ExpertDescription Describe() const override {
    ExpertDescription description;
    description.name = "expert-2";
    description.state = "usable";
    description.loaded_bytes = 77;
    description.held = {{LayerId(1), ExpertId(5)}, {LayerId(3), ExpertId(32)}};
    return description;
  }
  ComputedLoad Load() const override { return {{1, 3}, 2, {1, 2, 3, int64_t{1} << 40}}; }
  absl::Status DrainWithin(absl::Duration timeout) override {
    if (timeout < absl::Minutes(1)) return absl::DeadlineExceededError("rows are under way");
    return absl::OkStatus();
  }
};

class FakeAttention final : public AttentionControl {
 public:
  AttentionDescription Describe() const override {
    AttentionDescription description;
    description.name = "attention-1";
    description.kv_num_blocks = 9;
    description.sessions = 3;
    return description;
  }
};

/// A service on an operators' port, and a stub of it.
template <typename Api>
class AdminPort {
 public:
  explicit AdminPort(grpc::Service& service)
      : health_([](const std::string&) { return std::optional<bool>(true); }) {
    RpcServerOptions options;
    options.listen = {"127.0.0.1", 0};
    options.kind = PortKind::kAdmin;
    server_ = *RpcServer::Start(options, health_, {&service});
    stub_ = Api::NewStub(
        grpc::CreateChannel(FormatAddress(server_->address()), grpc::InsecureChannelCredentials()));
  }
  typename Api::Stub* operator->() { return stub_.get(); }

 private:
  HealthRpc health_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<typename Api::Stub> stub_;
};

TEST(ExpertRpcTest, TellsWhatItHoldsAndComputed) {
  namespace pb = ::moebius::api::expert::v1;
  FakeExpert expert;
  ExpertRpc rpc(expert);
  AdminPort<pb::ExpertControl> port(rpc);
  grpc::ClientContext describe;
  pb::DescribeResponse description;
  ASSERT_TRUE(port->Describe(&describe, pb::DescribeRequest(), &description).ok());
  EXPECT_EQ(description.name(), "expert-2");
  EXPECT_EQ(description.loaded_bytes(), 77);
  EXPECT_THAT(description.held_layers(), ElementsAre(1, 3));
  EXPECT_THAT(description.held_experts(), ElementsAre(5, 32));
  grpc::ClientContext get_load;
  pb::GetExpertLoadResponse load;
  ASSERT_TRUE(port->GetExpertLoad(&get_load, pb::GetExpertLoadRequest(), &load).ok());
  EXPECT_THAT(load.layer_ids(), ElementsAre(1, 3));
  EXPECT_THAT(load.computed(), ElementsAre(1, 2, 3, int64_t{1} << 40));
}

TEST(ExpertRpcTest, DrainsAsLongAsTheCallerWaits) {
  namespace pb = ::moebius::api::expert::v1;
  FakeExpert expert;
  ExpertRpc rpc(expert);
  AdminPort<pb::ExpertControl> port(rpc);
  pb::DrainResponse response;
  grpc::ClientContext patient;
  EXPECT_TRUE(port->Drain(&patient, pb::DrainRequest(), &response).ok());
  grpc::ClientContext hasty;
  hasty.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  EXPECT_EQ(port->Drain(&hasty, pb::DrainRequest(), &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST(AttentionRpcTest, TellsItsKv) {
  namespace pb = ::moebius::api::attention::v1;
  FakeAttention attention;
  AttentionRpc rpc(attention);
  AdminPort<pb::AttentionControl> port(rpc);
  grpc::ClientContext describe;
  pb::DescribeResponse description;
  ASSERT_TRUE(port->Describe(&describe, pb::DescribeRequest(), &description).ok());
  EXPECT_EQ(description.name(), "attention-1");
  EXPECT_EQ(description.kv_num_blocks(), 9);
  EXPECT_EQ(description.sessions(), 3);
}

}  // namespace
}  // namespace moebius
