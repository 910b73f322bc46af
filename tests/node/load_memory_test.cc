// SPDX-License-Identifier: Apache-2.0
// Loading takes the memory of the packed weights and little more, however they come.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "moebius/model/model_shapes.h"
#include "moebius/model/random_checkpoint.h"
#include "node/embedded.h"

namespace moebius {
namespace {

constexpr int64_t kKvBudgetBytes = int64_t{16} << 20;

// A figure of /proc/self/status in bytes: "VmHWM", the peak of resident memory, mapped files
// included; "VmRSS".
int64_t StatusBytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  std::string name;
  int64_t kilobytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (std::sscanf(line.c_str(), (key + ": %ld").c_str(), &kilobytes) == 1) break;
  }
  return kilobytes * 1024;
}

struct Peak {
  int64_t grown_bytes = 0;  // the peak of resident memory above what there was before
  int64_t weight_bytes = 0;
  int64_t outcome = 0;
};

// Opens the model in a process of its own.
Peak LoadInChild(const EmbeddedOptions& options) {
  int pipe_fds[2];
  EXPECT_EQ(pipe(pipe_fds), 0);
  const pid_t child = fork();
  EXPECT_GE(child, 0);
  if (child == 0) {
    std::ofstream("/proc/self/clear_refs") << "5";  // forgets the peak of the parent
    Peak peak;
    const int64_t before = StatusBytes("VmRSS");
    if (const auto node = EmbeddedNode::Open(options); node.ok()) {
      peak.grown_bytes = StatusBytes("VmHWM") - before;
      peak.weight_bytes = (*node)->info().weight_bytes;
      peak.outcome = static_cast<int64_t>((*node)->info().load.found.outcome);
    }
    const bool is_written = write(pipe_fds[1], &peak, sizeof(peak)) == sizeof(peak);
    _exit(is_written ? 0 : 1);
  }
  close(pipe_fds[1]);
  Peak peak;
  EXPECT_EQ(read(pipe_fds[0], &peak, sizeof(peak)), static_cast<ssize_t>(sizeof(peak)));
  close(pipe_fds[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return peak;
}

TEST(LoadMemoryTest, PeaksAtMostATenthAboveTheWeights) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/load_memory_test.", getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const RandomCheckpointOptions shape = ScaleShape(*FindModelShape("demo"), 12);
  ASSERT_TRUE(WriteRandomCheckpoint(folder + "/model", shape).ok());
  EmbeddedOptions options;
  options.model_path = folder + "/model";
  options.num_threads = 2;
  options.kv_budget_bytes = kKvBudgetBytes;
  const auto expect_small = [](const Peak& peak, const char* how) {
    EXPECT_GT(peak.weight_bytes, int64_t{200} << 20);
    EXPECT_GE(peak.grown_bytes, peak.weight_bytes) << "the weights are not resident: " << how;
    EXPECT_LE(peak.grown_bytes - kKvBudgetBytes, peak.weight_bytes + peak.weight_bytes / 10) << how;
    std::printf("%s: %.1f MB of weights, peak %.1f MB with a KV pool of up to %.1f MB\n", how,
                static_cast<double>(peak.weight_bytes) / 1e6,
                static_cast<double>(peak.grown_bytes) / 1e6,
                static_cast<double>(kKvBudgetBytes) / 1e6);
  };
  expect_small(LoadInChild(options), "from the checkpoint");
  options.packed_cache.folder = folder + "/kept";
  const Peak first = LoadInChild(options);
  expect_small(first, "from the checkpoint, and kept");
  const Peak warm = LoadInChild(options);
  EXPECT_EQ(warm.outcome, static_cast<int64_t>(PackedCacheOutcome::kHit));
  expect_small(warm, "from the packed cache");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace moebius
