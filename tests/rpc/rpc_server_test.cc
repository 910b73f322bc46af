// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/rpc_server.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/owned_fd.h"
#include "tests/support/expert_process.h"
#include "tests/support/metric_values.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

HealthSource Well() {
  return [](const std::string&) { return std::optional<bool>(true); };
}

RpcServerOptions OnLoopback() {
  RpcServerOptions options;
  options.listen = {"127.0.0.1", 0};
  return options;
}

// The code that a call of this method ends with.
grpc::StatusCode CodeOf(const RpcServer& server, const std::string& method) {
  grpc::GenericStub stub(
      grpc::CreateChannel(FormatAddress(server.address()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(reinterpret_cast<void*>(1));
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  call->WritesDone(reinterpret_cast<void*>(2));
  grpc::Status status;
  call->Finish(&status, reinterpret_cast<void*>(3));
  queue.Next(&tag, &ok);
  queue.Next(&tag, &ok);
  return status.error_code();
}

constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

TEST(RpcServerTest, HasReflectionOnlyWhereItIsSwitchedOn) {
  HealthRpc health(Well());
  RpcServerOptions options = OnLoopback();
  options.reflection = true;
  const auto with = *RpcServer::Start(options, health, {});
  HealthRpc other(Well());
  const auto without = *RpcServer::Start(OnLoopback(), other, {});
  EXPECT_EQ(CodeOf(*with, kReflection), grpc::StatusCode::OK);
  EXPECT_EQ(CodeOf(*without, kReflection), grpc::StatusCode::UNIMPLEMENTED);
}

TEST(RpcServerTest, NamesWhoHoldsABusyPort) {
  HealthRpc health(Well());
  const auto first = *RpcServer::Start(OnLoopback(), health, {});
  HealthRpc other(Well());
  RpcServerOptions options = OnLoopback();
  options.listen.port = first->address().port;
  const auto second = RpcServer::Start(options, other, {});
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat(getpid())));
}

// A plain TCP connection, which says nothing.
OwnedFd ConnectTo(const RpcServer& server) {
  OwnedFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.address().port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return socket;
}

TEST(RpcServerTest, KeepsNoMoreConnectionsThanItsLimitAndCutsThoseThatSayNothing) {
  HealthRpc health(Well());
  RpcServerOptions options = OnLoopback();
  options.max_connections = 5;
  options.max_connections_per_address = 3;
  std::atomic<int> told{0};
  options.on_refusal = [&told](const LogSource& source, const std::string& sentence) {
    EXPECT_EQ(source.peer, "127.0.0.1");
    EXPECT_EQ(source.kind, "connection");
    EXPECT_EQ(sentence,
              "closed a connection of 127.0.0.1 to the public port at once: it takes 5 "
              "connections, 3 of one address");
    ++told;
  };
  const auto server = *RpcServer::Start(options, health, {});
  std::vector<OwnedFd> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(ConnectTo(*server));
  const auto figures_are = [&](uint64_t open, uint64_t refused) {
    return WaitFor([&] {
      const ConnectionFigures figures = server->connections();
      return figures.open == open && figures.refused_for_address == refused;
    });
  };
  EXPECT_TRUE(figures_are(3, 5));
  EXPECT_TRUE(WaitFor([&told] { return told == 5; }));
  // Two seconds are enough to say hello; then a caller finds room.
  EXPECT_TRUE(figures_are(0, 5));
  EXPECT_EQ(CodeOf(*server, "/grpc.health.v1.Health/Nothing"), grpc::StatusCode::UNIMPLEMENTED);
  Registry registry;
  const auto handle =
      registry.AddCollector([&](MetricWriter& writer) { server->WriteMetrics(writer); });
  const std::string scrape = registry.Scrape();
  EXPECT_EQ(ValueOf(scrape, "moebius_rpc_connections_refused_total{port=\"public\"}"), 5);
}

TEST(RpcServerTest, TakesNoMoreConnectionsThanDescriptorsAllow) {
  const auto bounded = [](uint64_t max_descriptors, PortKind kind) {
    RpcServerOptions options;
    options.kind = kind;
    BoundByDescriptors(max_descriptors, &options);
    return std::pair(options.max_connections, options.max_connections_per_address);
  };
  EXPECT_EQ(bounded(200, PortKind::kPublic), std::pair(50u, 25u));
  EXPECT_EQ(bounded(200, PortKind::kAdmin), std::pair(12u, 6u));
  EXPECT_EQ(bounded(3, PortKind::kPublic), std::pair(2u, 1u)) << "one caller at least";
  EXPECT_EQ(bounded(4096, PortKind::kPublic), std::pair(1024u, 512u));
  EXPECT_EQ(bounded(~uint64_t{0}, PortKind::kPublic), std::pair(1024u, 512u)) << "raises nothing";
  EXPECT_EQ(bounded(~uint64_t{0}, PortKind::kAdmin), std::pair(1024u, 512u));
}

TEST(RpcServerTest, KeepsToThisHostWithoutTls) {
  HealthRpc health(Well());
  RpcServerOptions options = OnLoopback();
  options.listen.host = "0.0.0.0";
  EXPECT_TRUE(absl::IsPermissionDenied(RpcServer::Start(options, health, {}).status()));
  options.allow_insecure = true;
  EXPECT_TRUE(RpcServer::Start(options, health, {}).ok());
}

TEST(RpcServerTest, StartsAndEndsThreeTimesInOneProcess) {
  for (int time = 0; time < 3; ++time) {
    HealthRpc health(Well());
    const auto server = *RpcServer::Start(OnLoopback(), health, {});
    EXPECT_NE(server->address().port, 0);
    server->Shutdown(absl::Seconds(1));
  }
}

}  // namespace
}  // namespace moebius
