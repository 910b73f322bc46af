// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/huge_pages.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using testing::HasSubstr;
using testing::Not;

// A host as its files describe it.
class HugePagesTest : public testing::Test {
 protected:
  HugePagesTest() : root_(absl::StrCat(testing::TempDir(), "/huge_pages_test.", getpid())) {}
  ~HugePagesTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const std::string root_;
};

TEST_F(HugePagesTest, ReadsTheWordInBrackets) {
  EXPECT_EQ(HostHugePagePolicy(root_), "");
  for (const std::string policy : {"always", "madvise", "never"}) {
    std::string text = "always madvise never\n";
    text.replace(text.find(policy), policy.size(), "[" + policy + "]");
    Write("/sys/kernel/mm/transparent_hugepage/enabled", text);
    EXPECT_EQ(HostHugePagePolicy(root_), policy);
  }
}

TEST_F(HugePagesTest, CountsTheMappingThatBeginsThere) {
  Write("/proc/self/smaps",
        "7f0000000000-7f0000200000 rw-p 00000000 00:00 0\nSize: 2048 kB\nAnonHugePages: 6 kB\n"
        "VmFlags: rd wr hg\n"
        "7f0000400000-7f0000c00000 rw-p 00000000 00:00 0 \nSize: 8192 kB\n"
        "AnonHugePages:      6144 kB\nVmFlags: rd wr hg\n"
        "7f0001000000-7f0001001000 r--p 00000000 fe:00 7 /lib/x\nSize: 4 kB\n"
        "7f0002000000-7f0002001000 rw-p 00000000 00:00 0\nAnonHugePages: 2048 kB\n");
  const auto at = [&](uint64_t address) {
    return HugePageBytesAt(reinterpret_cast<const void*>(address), root_);
  };
  EXPECT_EQ(at(0x7f0000400000), 6144 * 1024);
  EXPECT_EQ(at(0x7f0000000000), 6 * 1024);
  EXPECT_EQ(at(0x7f0000600000), 0) << "inside a mapping, not at its begin";
  EXPECT_EQ(at(0x7f0001000000), 0) << "the next mapping's count is not this one's";
  EXPECT_EQ(at(0x123000), 0);
}

TEST(HugePagesWordsTest, SayWhyThereAreNone) {
  EXPECT_THAT(DescribeHugePages({4 << 20, 0}, "never"), HasSubstr("this host says never"));
  EXPECT_THAT(DescribeHugePages({4 << 20, 0}, "madvise"), HasSubstr("had none free"));
  EXPECT_THAT(DescribeHugePages({4 << 20, 0}, ""), HasSubstr("kernel has none"));
  EXPECT_EQ(DescribeHugePages({4 << 20, 2 << 20}, "madvise"),
            "huge pages: 4194304 bytes asked, 2097152 got");
  EXPECT_THAT(DescribeHugePages({}, "never"), Not(HasSubstr("never")));
}

}  // namespace
}  // namespace moebius
