// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/replace_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

std::string NewFolder() {
  std::string folder = absl::StrCat(testing::TempDir(), "/replace.XXXXXX");
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  return folder;
}

std::string ContentOf(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

mode_t ModeOf(const std::string& path) {
  struct stat facts = {};
  EXPECT_EQ(lstat(path.c_str(), &facts), 0) << path;
  return facts.st_mode;
}

TEST(ReplaceFileTest, GivesANewFileItsModeAndLetsAnOldOneKeepIts) {
  const std::string path = NewFolder() + "/file";
  ASSERT_TRUE(ReplaceFile(path, "one", 0600).ok());
  EXPECT_EQ(ModeOf(path) & 0777, 0600u);
  // An operator has let a group read it.
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  ASSERT_TRUE(ReplaceFile(path, "two", 0600).ok());
  EXPECT_EQ(ModeOf(path) & 0777, 0640u);
  EXPECT_EQ(ContentOf(path), "two");
  EXPECT_NE(access((path + ".new").c_str(), F_OK), 0);
}

TEST(ReplaceFileTest, LetsALinkBeALink) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(ReplaceFile(folder + "/target", "one", 0600).ok());
  ASSERT_EQ(symlink("target", (folder + "/link").c_str()), 0);
  ASSERT_TRUE(ReplaceFile(folder + "/link", "two", 0600).ok());
  EXPECT_TRUE(S_ISLNK(ModeOf(folder + "/link")));
  EXPECT_EQ(ContentOf(folder + "/target"), "two");
}

TEST(ReplaceFileTest, SaysWhatCannotBeReplacedAndTouchesNothing) {
  const std::string folder = NewFolder();
  const absl::Status status = ReplaceFile(folder + "/none/file", "one", 0600);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/none/file"), absl::string_view::npos) << status;
  EXPECT_FALSE(LockForReplacing(folder + "/none/file").ok());
}

TEST(ReplaceFileTest, LosesNothingOfManyWhoLockReadAndReplace) {
  const std::string path = NewFolder() + "/number";
  ASSERT_TRUE(ReplaceFile(path, "0", 0600).ok());
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 8; ++writer) {
    writers.emplace_back([&path] {
      for (int i = 0; i < 10; ++i) {
        const auto lock = LockForReplacing(path);
        ASSERT_TRUE(lock.ok()) << lock.status();
        int number = -1;
        ASSERT_TRUE(absl::SimpleAtoi(ContentOf(path), &number));
        ASSERT_TRUE(ReplaceFile(path, absl::StrCat(number + 1), 0600).ok());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(ContentOf(path), "80");
}

}  // namespace
}  // namespace moebius
