// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/flags.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/service/exit_status.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

ServiceFlags ExpertFlags() {
  ServiceFlags flags = ServiceFlags::For(Role::kExpert);
  flags.model = "models/demo";
  flags.join = {"127.0.0.1:7410"};
  return flags;
}

TEST(ServiceFlagsTest, DefaultsOfEveryRoleAreRightWithAModelAndARouter) {
  for (const Role role : {Role::kRouter, Role::kExpert, Role::kAttention}) {
    ServiceFlags flags = ServiceFlags::For(role);
    flags.model = "models/demo";
    if (role != Role::kRouter) flags.join = {"10.0.0.1:7410"};
    const auto config = ValidateServiceFlags(flags);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->listen.has_value(), role != Role::kExpert);
    EXPECT_THAT(config->name, HasSubstr(std::string(RoleName(role))));
    EXPECT_GE(config->num_threads, 1);
    EXPECT_NE(config->kernels, nullptr);
  }
}

TEST(ServiceFlagsTest, RefusesWhatDoesNotFitTogether) {
  struct Case {
    std::function<void(ServiceFlags&)> spoil;
    const char* message;
  };
  const std::vector<Case> cases = {
      {[](ServiceFlags& f) { f.model = ""; }, "--model is missing"},
      {[](ServiceFlags& f) { f.join = {}; }, "--join is missing"},
      {[](ServiceFlags& f) { f.join = {"0.0.0.0:1"}; }, "a place to listen"},
      {[](ServiceFlags& f) { f.join = {"host"}; }, "--join"},
      {[](ServiceFlags& f) {
         f.join = {"a:1", "a:1"};
       },
       "--join a:1 is given twice"},
      {[](ServiceFlags& f) {
         f.join = {"a:1", "b:1"};
         f.role = Role::kAttention;
         f.listen = "127.0.0.1:0";
       },
       "keeps the sessions of one router"},
      {[](ServiceFlags& f) {
         for (int port = 1; port <= 17; ++port) f.join.push_back("a:" + std::to_string(port));
       },
       "at most 16"},
      {[](ServiceFlags& f) { f.name = "two words"; }, "--name"},
      {[](ServiceFlags& f) { f.name = std::string(65, 'x'); }, "--name"},
      {[](ServiceFlags& f) { f.tls_ca = "ca.pem"; }, "come together"},
      {[](ServiceFlags& f) { f.tls_peers = {"x"}; }, "--tls-peer without TLS"},
      {[](ServiceFlags& f) { f.http_listen = "0.0.0.0:80"; }, "--http-listen"},
      {[](ServiceFlags& f) { f.admin_listen = "[::]:80"; }, "--admin-listen"},
      {[](ServiceFlags& f) { f.tier = "mmx"; }, "--tier 'mmx' is no tier"},
      {[](ServiceFlags& f) {
         f.tls_ca = f.tls_cert = f.tls_key = "x";
         f.insecure = true;
       },
       "contradict"},
  };
  for (const Case& refused : cases) {
    ServiceFlags flags = ExpertFlags();
    refused.spoil(flags);
    EXPECT_THAT(std::string(ValidateServiceFlags(flags).status().message()),
                HasSubstr(refused.message));
  }
}

TEST(ServiceFlagsTest, AnExpertServiceJoinsSeveralRouters) {
  ServiceFlags flags = ServiceFlags::For(Role::kExpert);
  Settings settings;
  AddServiceSettings(&flags, &settings);
  Settings::Requests requests;
  const auto nothing = [](const std::string&) { return std::optional<std::string>(); };
  ASSERT_TRUE(
      settings.Apply({"--model=m", "--join=a:1", "--join", "b:2"}, nothing, &requests).ok());
  const auto config = ValidateServiceFlags(flags);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->join, (std::vector<Address>{{"a", 1}, {"b", 2}}));
}

TEST(ServiceFlagsTest, ListensBeyondThisHostOnlyWithTlsOrOnDemand) {
  ServiceFlags flags = ServiceFlags::For(Role::kRouter);
  flags.model = "models/demo";
  flags.listen = "0.0.0.0:7410";
  flags.advertise = "10.0.0.1:0";
  EXPECT_EQ(ValidateServiceFlags(flags).status().code(), absl::StatusCode::kPermissionDenied);
  flags.insecure = true;
  EXPECT_TRUE(ValidateServiceFlags(flags).ok()) << ValidateServiceFlags(flags).status();
  flags.insecure = false;
  flags.tls_ca = flags.tls_cert = flags.tls_key = "x";
  EXPECT_TRUE(ValidateServiceFlags(flags).ok());
  flags.advertise = "";
  EXPECT_THAT(std::string(ValidateServiceFlags(flags).status().message()),
              HasSubstr("--advertise"));
}

TEST(ServiceFlagsTest, EveryRoleHasItsOwnSettings) {
  const auto help = [](Role role) {
    ServiceFlags flags = ServiceFlags::For(role);
    Settings settings;
    AddServiceSettings(&flags, &settings);
    return settings.Help();
  };
  EXPECT_THAT(help(Role::kRouter), ::testing::Not(HasSubstr("--join")));
  EXPECT_THAT(help(Role::kExpert), HasSubstr("--join"));
  EXPECT_THAT(help(Role::kExpert), ::testing::Not(HasSubstr("--listen ")));
  EXPECT_THAT(help(Role::kAttention), HasSubstr("--listen "));
}

TEST(ExitStatusTest, TheFirstCodeWins) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), kExitOk);
  EXPECT_EQ(ExitCodeOf(absl::InternalError("x")), kExitHost);
  const absl::Status model = WithExitCode(absl::NotFoundError("x"), kExitModel);
  EXPECT_EQ(ExitCodeOf(model), kExitModel);
  EXPECT_EQ(ExitCodeOf(WithExitCode(model, kExitBind)), kExitModel);
}

TEST(ExitStatusTest, AModelThatIsNotThereSaysSo) {
  ServiceFlags flags = ExpertFlags();
  flags.model = "/nowhere";
  const auto config = ValidateServiceFlags(flags);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(ExitCodeOf(OpenServiceModel(flags, *config).status()), kExitModel);
}

}  // namespace
}  // namespace moebius
