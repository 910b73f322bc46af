// SPDX-License-Identifier: Apache-2.0
// The services as their processes have them, with nobody to join: what operators can ask.
#include <optional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "attention_service/server.h"
#include "expert_service/server.h"
#include "moebius/service/exit_status.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"
#include "proto/moebius/api/attention/v1/attention.grpc.pb.h"
#include "proto/moebius/api/expert/v1/expert.grpc.pb.h"
#include "router_service/server.h"
#include "tests/rpc/admin_port.h"
#include "tests/support/http_get.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class Unheard final : public ProcessNotices {
 public:
  void Log(absl::string_view) override {}
  void Announce(absl::string_view) override {}
  void Fail(const absl::Status&) override {}
};

/// Flags of a service on free ports of this host.
ServiceFlags FlagsOf(Role role, const std::string& name) {
  ServiceFlags flags = ServiceFlags::For(role);
  flags.model = absl::StrCat(MOEBIUS_SOURCE_DIR, "/models/demo");
  flags.name = name;
  flags.admin_listen = "127.0.0.1:0";
  flags.http_listen = "";
  if (!flags.listen.empty()) flags.listen = "127.0.0.1:0";
  if (role != Role::kRouter) flags.join = {"127.0.0.1:9"};  // nobody answers there
  flags.threads = 1;
  return flags;
}

class AdminPortsTest : public testing::Test {
 protected:
  std::unique_ptr<ServiceServer> StartExpert() {
    ExpertServerOptions options;
    options.flags = FlagsOf(Role::kExpert, "expert-7");
    options.config = *ValidateServiceFlags(options.flags);
    return *StartExpertServer(options, notices_);
  }

  std::unique_ptr<ServiceServer> StartAttention() {
    AttentionServerOptions options;
    options.flags = FlagsOf(Role::kAttention, "attention-7");
    options.config = *ValidateServiceFlags(options.flags);
    return *StartAttentionServer(options, notices_);
  }

  // What a health probe hears; nothing when it fails.
  static std::optional<bool> IsServing(const std::string& address, const std::string& name) {
    const auto stub = StubAt<grpc::health::v1::Health>(address);
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(name);
    grpc::health::v1::HealthCheckResponse response;
    if (!stub->Check(&context, request, &response).ok()) return std::nullopt;
    return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  }

  Unheard notices_;
};

TEST_F(AdminPortsTest, AnExpertServiceTellsWhoItIsAndDrains) {
  namespace pb = ::moebius::api::expert::v1;
  const auto server = StartExpert();
  const auto stub = StubAt<pb::ExpertControl>(server->endpoints().admin);
  const auto describe = [&stub] {
    grpc::ClientContext context;
    pb::DescribeResponse response;
    EXPECT_TRUE(stub->Describe(&context, pb::DescribeRequest(), &response).ok());
    return response;
  };
  const pb::DescribeResponse before = describe();
  EXPECT_EQ(before.name(), "expert-7");
  EXPECT_EQ(before.state(), "joining");
  EXPECT_THAT(before.config_hash(), SizeIs(16));
  EXPECT_EQ(before.held_experts_size(), 0);
  EXPECT_EQ(before.threads(), 1);

  grpc::ClientContext load_context;
  pb::GetExpertLoadResponse load;
  ASSERT_TRUE(stub->GetExpertLoad(&load_context, pb::GetExpertLoadRequest(), &load).ok());
  EXPECT_EQ(load.layer_ids_size(), 5) << "layer 0 of the demo is dense";
  EXPECT_EQ(load.computed_size(), load.layer_ids_size() * load.num_experts());

  grpc::ClientContext drain_context;
  pb::DrainResponse drained;
  EXPECT_TRUE(stub->Drain(&drain_context, pb::DrainRequest(), &drained).ok());
  EXPECT_EQ(describe().state(), "draining");
}

TEST_F(AdminPortsTest, AnAttentionRankTellsWhoItIs) {
  namespace pb = ::moebius::api::attention::v1;
  const auto server = StartAttention();
  const auto stub = StubAt<pb::AttentionControl>(server->endpoints().admin);
  grpc::ClientContext context;
  pb::DescribeResponse description;
  ASSERT_TRUE(stub->Describe(&context, pb::DescribeRequest(), &description).ok());
  EXPECT_EQ(description.name(), "attention-7");
  EXPECT_EQ(description.state(), "joining");
  EXPECT_EQ(description.kv_num_blocks(), 0) << "no slot, no KV";
}

// An alert on refused connections says nothing of a port that shows none.
TEST_F(AdminPortsTest, AServiceShowsTheConnectionsOfAllItsGrpcPorts) {
  AttentionServerOptions options;
  options.flags = FlagsOf(Role::kAttention, "attention-8");
  options.flags.http_listen = "127.0.0.1:0";
  options.config = *ValidateServiceFlags(options.flags);
  const auto server = *StartAttentionServer(options, notices_);
  EXPECT_TRUE(IsServing(server->endpoints().admin, "liveness").has_value());
  const std::string metrics = HttpGet(*ParseAddress(server->endpoints().http), "/metrics");
  for (const char* port : {"admin", "data"}) {
    EXPECT_THAT(metrics, HasSubstr(absl::StrCat("moebius_rpc_connections{port=\"", port, "\"} ")));
    EXPECT_THAT(metrics, HasSubstr(absl::StrCat("moebius_rpc_connections_refused_total{port=\"",
                                                port, "\"} 0\n")));
  }
}

TEST_F(AdminPortsTest, HealthIsTheProcesssOwn) {
  const auto server = StartExpert();
  const std::string address = server->endpoints().admin;
  EXPECT_EQ(IsServing(address, "liveness"), true) << "without any peer";
  EXPECT_EQ(IsServing(address, "startup"), true);
  EXPECT_EQ(IsServing(address, "readiness"), false);
  EXPECT_EQ(IsServing(address, ""), false);
  EXPECT_EQ(IsServing(address, "nobody"), std::nullopt);
}

TEST_F(AdminPortsTest, APortThatIsTakenIsItsOwnExitCode) {
  const auto holder = StartExpert();
  ExpertServerOptions expert;
  expert.flags = FlagsOf(Role::kExpert, "expert-8");
  expert.flags.admin_listen = holder->endpoints().admin;
  expert.config = *ValidateServiceFlags(expert.flags);
  const absl::Status taken = StartExpertServer(expert, notices_).status();
  EXPECT_TRUE(absl::IsUnavailable(taken)) << taken;
  EXPECT_THAT(taken.message(), HasSubstr(holder->endpoints().admin));
  EXPECT_EQ(ExitCodeOf(taken), kExitBind);

  RouterServerOptions router;
  router.flags = FlagsOf(Role::kRouter, "router-8");
  router.router.grpc_listen = holder->endpoints().admin;
  router.config = *ValidateServiceFlags(router.flags);
  EXPECT_EQ(ExitCodeOf(StartRouterServer(router, notices_).status()), kExitBind);
}

}  // namespace
}  // namespace moebius
