// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/process_metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/metric_values.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

TEST(ProcessMetricsTest, TellsWhatTheKernelKnowsOfThisProcess) {
  Registry registry;
  const auto handle = registry.AddCollector(WriteProcessMetrics);
  const std::string before = registry.Scrape();
  EXPECT_GT(ValueOf(before, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(ValueOf(before, "process_virtual_memory_bytes"),
            ValueOf(before, "process_resident_memory_bytes"));
  EXPECT_GE(ValueOf(before, "process_threads"), 1);
  EXPECT_GE(ValueOf(before, "process_cpu_seconds_total"), 0);
  EXPECT_NEAR(ValueOf(before, "process_start_time_seconds"),
              static_cast<double>(absl::ToUnixSeconds(absl::Now())), 600);
  std::vector<int> fds;
  for (int index = 0; index < 5; ++index) fds.push_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(ValueOf(registry.Scrape(), "process_open_fds"),
            ValueOf(before, "process_open_fds") + 5);
  for (const int fd : fds) close(fd);
}

// The kernel's start of the machine is the wall clock less the time since, so it moves with the
// clock; a process starts once.
TEST(ProcessMetricsTest, ItsStartDoesNotMoveWithTheWallClock) {
  const std::string proc = absl::StrCat(::testing::TempDir(), "process_metrics_", getpid());
  std::filesystem::create_directories(proc + "/self");
  const auto write = [&proc](const std::string& name, const std::string& text) {
    std::ofstream(proc + "/" + name) << text;
  };
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  write("self/stat", absl::StrCat("7 (a b) S 1 7 7 0 -1 0 0 0 0 0 2 3 0 0 20 0 4 0 ", 50 * ticks,
                                  " 8192 2 0\n"));
  write("stat", "cpu 1 2 3\nbtime 1000000\nprocesses 9\n");
  const ProcessMetrics metrics(proc);
  Registry registry;
  const auto handle = registry.AddCollector([&](MetricWriter& writer) { metrics.Write(writer); });
  EXPECT_EQ(ValueOf(registry.Scrape(), "process_start_time_seconds"), 1000050);
  write("stat", "cpu 1 2 3\nbtime 1003600\nprocesses 9\n");
  EXPECT_EQ(ValueOf(registry.Scrape(), "process_start_time_seconds"), 1000050);
  std::filesystem::remove_all(proc);
}

TEST(ProcessMetricsTest, TellsWhatTheProcessIs) {
  Registry registry;
  const auto handle = registry.AddCollector([](MetricWriter& writer) {
    WriteProcessFacts({"expert", "0.1.0", "a41c7e02", "cpu", "bf16", "avx2"}, writer);
  });
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("moebius_build_info{service=\"expert\",version=\"0.1.0\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("moebius_config_info{config_hash=\"a41c7e02\",numeric_class=\"cpu\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("moebius_kernel_info{dtype=\"bf16\",kernel=\"avx2\"} 1\n"));
}

}  // namespace
}  // namespace moebius
