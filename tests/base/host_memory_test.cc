// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/host_memory.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    4194304 kB\n");
  }
  ~HostMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  const std::string root_ = testing::TempDir() + "moebius_host_memory";
};

TEST_F(HostMemoryTest, IsTheMachinesWithoutALimit) {
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.limit_bytes, 16 * kGiB);
  EXPECT_EQ(memory.available_bytes, 4 * kGiB);
  EXPECT_EQ(memory.source, "machine");
}

TEST_F(HostMemoryTest, IsTheSmallestOfACgroupAndThoseAboveIt) {
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  Write("/sys/fs/cgroup/pod/memory.max", "2147483648\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.limit_bytes, 2 * kGiB);
  EXPECT_THAT(memory.source, testing::HasSubstr("cgroup v2"));
}

TEST_F(HostMemoryTest, ReadsTheFirstVersionsFilesToo) {
  Write("/proc/self/cgroup", "5:cpu:/a\n4:memory:/a\n");
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(ReadHostMemory(root_).limit_bytes, kGiB);
  // "No limit" is a very large number there.
  Write("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(ReadHostMemory(root_).limit_bytes, 16 * kGiB);
}

TEST_F(HostMemoryTest, LeavesThreeQuartersForOtherThings) {
  EXPECT_EQ(DefaultKvBudgetBytes({4 * kGiB, 0, ""}), kGiB);
  EXPECT_EQ(DefaultKvBudgetBytes({64 * kGiB, 0, ""}), 8 * kGiB);
}

}  // namespace
}  // namespace moebius
