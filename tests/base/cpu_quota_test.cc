// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/cpu_quota.h"

#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"

#include "moebius/base/executor.h"

namespace moebius {
namespace {

// A folder that stands for the root of a machine; removed at the end.
class CpuQuotaTest : public testing::Test {
 protected:
  CpuQuotaTest()
      : root_(std::filesystem::path(testing::TempDir()) /
              ("cpu_quota_" + std::to_string(getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name())) {}
  ~CpuQuotaTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path full = root_ / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  std::optional<double> Quota() const { return CpuQuota(root_.string()); }

 private:
  std::filesystem::path root_;
};

TEST(CgroupV2Test, DividesQuotaByPeriod) {
  EXPECT_EQ(CpusOfCgroupV2("200000 100000\n"), 2.0);
  EXPECT_EQ(CpusOfCgroupV2("150000 100000"), 1.5);
}

TEST(CgroupV2Test, HasNoLimitForMaxOrGarbage) {
  for (const char* text : {"max 100000\n", "", "200000", "0 100000", "1 0", "-5 100000", "a b",
                           "200000 100000 7", "nan 100000"}) {
    EXPECT_EQ(CpusOfCgroupV2(text), std::nullopt) << text;
  }
}

TEST(CgroupV1Test, DividesQuotaByPeriodAndTakesMinusOneForNoLimit) {
  EXPECT_EQ(CpusOfCgroupV1("50000\n", "100000\n"), 0.5);
  EXPECT_EQ(CpusOfCgroupV1("-1\n", "100000\n"), std::nullopt);
  EXPECT_EQ(CpusOfCgroupV1("", ""), std::nullopt);
}

TEST_F(CpuQuotaTest, HasNoLimitWithoutCgroups) { EXPECT_EQ(Quota(), std::nullopt); }

TEST_F(CpuQuotaTest, ReadsTheTopOfTheMountInAContainer) {
  Write("proc/self/cgroup", "0::/\n");
  Write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(Quota(), 3.0);
}

TEST_F(CpuQuotaTest, ReadsTheTopWhenTheHostsPathIsNotMounted) {
  Write("proc/self/cgroup", "0::/kubepods/pod7/c1\n");
  Write("sys/fs/cgroup/cpu.max", "300000 100000\n");
  EXPECT_EQ(Quota(), 3.0);
}

TEST_F(CpuQuotaTest, TakesTheSmallestQuotaOfAllParents) {
  Write("proc/self/cgroup", "0::/user.slice/job/leaf\n");
  Write("sys/fs/cgroup/user.slice/job/leaf/cpu.max", "max 100000\n");
  Write("sys/fs/cgroup/user.slice/job/cpu.max", "250000 100000\n");
  Write("sys/fs/cgroup/user.slice/cpu.max", "800000 100000\n");
  EXPECT_EQ(Quota(), 2.5);
}

TEST_F(CpuQuotaTest, ReadsVersionOneOfASharedController) {
  Write("proc/self/cgroup", "5:memory:/m\n4:cpuacct,cpu:/docker/abc\n");
  Write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "120000\n");
  Write("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(), 1.2);
}

TEST(NumThreadsForTest, IsTheSmallerOfAffinityAndQuotaRoundedUp) {
  EXPECT_EQ(NumThreadsFor(8, std::nullopt), 8);
  EXPECT_EQ(NumThreadsFor(8, 2.0), 2);
  EXPECT_EQ(NumThreadsFor(8, 1.2), 2);
  EXPECT_EQ(NumThreadsFor(2, 16.0), 2);
  EXPECT_EQ(NumThreadsFor(4, 0.25), 1);
  EXPECT_EQ(NumThreadsFor(1, 1e300), 1);
}

TEST(DefaultNumThreadsTest, FollowsTheAffinityOfTheCallingThread) {
  int threads = 0;
  // A thread of its own, so that the narrow affinity ends with it.
  std::thread([&threads] {
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all)) {
        CPU_SET(cpu, &one);
        break;
      }
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    threads = DefaultNumThreads();
  }).join();
  EXPECT_EQ(threads, 1);
}

}  // namespace
}  // namespace moebius
