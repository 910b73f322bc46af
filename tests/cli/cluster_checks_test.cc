// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster_checks.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/service/http_endpoint.h"
#include "moebius/telemetry/health.h"
#include "moebius/telemetry/registry.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

ProcessFacts Well(const std::string& name) {
  ProcessFacts facts;
  facts.name = name;
  facts.http_address = name + ":7412";
  facts.version = "0.1.0";
  facts.config_hash = "abc";
  facts.skew = absl::Milliseconds(400);
  return facts;
}

DoctorCheck Named(const std::vector<DoctorCheck>& checks, const std::string& name) {
  for (const DoctorCheck& check : checks) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << "no check " << name;
  return {};
}

TEST(ClusterChecksTest, AreAllRightWhereProcessesAgree) {
  std::vector<ProcessFacts> processes = {Well("router"), Well("expert-0"), Well("attention-0")};
  processes[0].epoch = 7;
  for (const DoctorCheck& check : JudgeProcesses(processes)) {
    EXPECT_EQ(check.state, CheckState::kOk) << check.name << ": " << check.detail;
    EXPECT_EQ(check.hint, "");
  }
  EXPECT_EQ(Named(JudgeProcesses(processes), "placement").detail, "epoch 7");
}

TEST(ClusterChecksTest, NameWhoIsSilentUnhealthyOrOfAnotherMind) {
  std::vector<ProcessFacts> processes = {Well("router"), Well("expert-0"), Well("expert-1"),
                                         Well("router-b")};
  processes[0].epoch = 7;
  processes[3].epoch = 9;
  processes[1].version = "0.2.0";
  processes[1].config_hash = "def";
  processes[1].skew = -absl::Hours(1);
  processes[1].unhealthy = {"/readyz 503: the slot is loaded"};
  processes[2].reached = absl::UnavailableError("Connection refused");
  processes[2].version = processes[2].config_hash = "";
  const std::vector<DoctorCheck> checks = JudgeProcesses(processes);
  EXPECT_EQ(Named(checks, "answering").state, CheckState::kFault);
  EXPECT_EQ(Named(checks, "answering").detail, "expert-1 (expert-1:7412): Connection refused");
  EXPECT_EQ(Named(checks, "health").state, CheckState::kFault);
  EXPECT_THAT(Named(checks, "health").detail, HasSubstr("expert-0 /readyz 503: the slot"));
  EXPECT_EQ(Named(checks, "version").state, CheckState::kWarning);
  EXPECT_EQ(Named(checks, "version").detail, "0.1.0 at router, router-b; 0.2.0 at expert-0");
  EXPECT_EQ(Named(checks, "configuration").state, CheckState::kFault);
  EXPECT_EQ(Named(checks, "placement").detail, "epoch 7 at router; epoch 9 at router-b");
  EXPECT_EQ(Named(checks, "clocks").state, CheckState::kWarning);
  EXPECT_EQ(Named(checks, "clocks").detail, "off: expert-0 by -3600 s");
}

TEST(ClusterChecksTest, CallNothingRightWhereNobodyAnswers) {
  ProcessFacts silent;
  silent.name = "expert-0";
  silent.reached = absl::UnavailableError("Connection refused");
  const std::vector<DoctorCheck> checks = JudgeProcesses({silent});
  EXPECT_EQ(checks.size(), 6u);
  for (const DoctorCheck& check : checks) {
    EXPECT_NE(check.state, CheckState::kOk) << check.name << ": " << check.detail;
  }
  EXPECT_EQ(Named(checks, "clocks").detail, "nobody answers");
}

TEST(ClusterChecksTest, AMissingServiceIsAFaultOnlyWhereTheRouterLacksIt) {
  ServerInfo info;
  info.ready = true;
  info.services = {{"router", "router", "usable", "", "", ""},
                   {"expert-1", "expert", "suspect", "", "4 beats missed", ""}};
  EXPECT_EQ(Named(JudgeRouter(info), "router").state, CheckState::kOk);
  EXPECT_EQ(Named(JudgeRouter(info), "services").state, CheckState::kWarning);
  EXPECT_EQ(Named(JudgeRouter(info), "services").detail, "expert-1 is suspect: 4 beats missed");
  info.ready = false;
  info.missing = {"expert slot 1 of 2 is empty"};
  EXPECT_EQ(Named(JudgeRouter(info), "router").detail, "not ready: expert slot 1 of 2 is empty");
  EXPECT_EQ(Named(JudgeRouter(info), "services").state, CheckState::kFault);
}

TEST(ClusterChecksTest, RepeatWhatTheRouterWarnsOf) {
  ServerInfo info;
  info.ready = true;
  EXPECT_EQ(JudgeRouter(info).size(), 2u);
  info.warnings = {"keys in clear text; give --tls-ca; and more"};
  const DoctorCheck check = Named(JudgeRouter(info), "exposure");
  EXPECT_EQ(check.state, CheckState::kWarning);
  EXPECT_EQ(check.detail, "keys in clear text");
  EXPECT_EQ(check.hint, "give --tls-ca; and more");
}

TEST(ClusterChecksTest, AskARealPort) {
  Registry registry;
  Health health(Clock::Monotonic());
  health.SetStarted();
  bool is_ready = false;
  health.AddReadinessCheck([&is_ready]() -> std::vector<std::string> {
    if (is_ready) return {};
    return {"no expert", "no attention"};
  });
  const auto facts_collector = registry.AddCollector([](MetricWriter& writer) {
    writer.WriteGauge(Metric::kBuildInfo, 1, {"router", "0.1.0"});
    writer.WriteGauge(Metric::kConfigInfo, 1, {"abc", "bf16"});
    writer.WriteGauge(Metric::kPlacementEpoch, 12);
  });
  auto endpoint = HttpEndpoint::Start({"127.0.0.1", 0}, registry, health);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string address = FormatAddress((*endpoint)->address());
  ProcessFacts facts = AskProcess("router", address, absl::Seconds(20));
  EXPECT_TRUE(facts.reached.ok()) << facts.reached;
  ASSERT_EQ(facts.unhealthy.size(), 1u);
  EXPECT_EQ(facts.unhealthy[0], "/readyz 503: no expert; no attention");
  EXPECT_EQ(facts.version, "0.1.0");
  EXPECT_EQ(facts.config_hash, "abc");
  EXPECT_EQ(facts.epoch, 12);
  ASSERT_TRUE(facts.skew.has_value());
  EXPECT_LT(absl::AbsDuration(*facts.skew), absl::Seconds(20));
  is_ready = true;
  EXPECT_TRUE(AskProcess("router", address, absl::Seconds(20)).unhealthy.empty());
  endpoint->reset();
  EXPECT_FALSE(AskProcess("router", address, absl::Seconds(20)).reached.ok());
}

TEST(ClusterChecksTest, RefuseAddressesThatAreNone) {
  DoctorFlags flags;
  for (const char* peers : {"", "a", "a:1,", "a:1/metrics", "http://a:1", "a:b"}) {
    flags.peers = peers;
    EXPECT_TRUE(absl::IsInvalidArgument(ExamineCluster(flags).status())) << peers;
  }
}

}  // namespace
}  // namespace moebius
