// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/packed_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/model/packed_folder.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using testing::HasSubstr;
using Outcome = PackedCacheOutcome;

constexpr size_t kDataBytes = 3 * kPackedSectionBytes + 4711;

std::vector<uint8_t> Pattern(uint8_t seed) {
  std::vector<uint8_t> data(kDataBytes);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 31 + i / 251 + seed);
  return data;
}

// A checkpoint, and a cache with one range of bytes that stands for packed weights.
class PackedCacheTest : public testing::Test {
 protected:
  PackedCacheTest() : data_(Pattern(1)) {
    std::filesystem::create_directory(model());
    MiniCheckpoint().Write(model());
    Open();
  }

  std::string model() const { return folder_.File("model"); }
  std::string kept() const { return folder_.File("kept"); }
  std::string file() const { return kept() + "/" + PackedFileName(*checkpoint_, key_); }

  // Waits until a change of the model's files from now on shows in their times.
  void Open() {
    checkpoint_ = *Checkpoint::Open(model());
    source_ = *PackedSource::Of(*checkpoint_);
    while (!source_.is_settled) {
      absl::SleepFor(absl::Milliseconds(5));
      source_ = *PackedSource::Of(*checkpoint_);
    }
  }

  PackedCacheResult Write(PackedCache& cache) {
    return cache.Write(*checkpoint_, key_, source_, data_, 2);
  }
  // Reads, and expects the bytes of a hit to be those that were kept.
  PackedCacheResult Read(PackedCache& cache, int num_threads = 2) {
    std::vector<uint8_t> out(kDataBytes, 0xEE);
    PackedCacheResult result = cache.Read(*checkpoint_, key_, absl::MakeSpan(out), num_threads);
    EXPECT_EQ(result.outcome == Outcome::kHit, out == data_);
    return result;
  }

  std::string Bytes() const { return ReadFileBytes(file()); }
  void Overwrite(const std::string& bytes) {
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << bytes;
  }

  const TemporaryFolder folder_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  PackedSource source_;
  PackedKey key_ = {"experts", "bf16-32x32-adjacent-1", "0:0-3 1:0-3"};
  std::vector<uint8_t> data_;
};

TEST_F(PackedCacheTest, GivesBackWhatItKept) {
  PackedCache cache({kept()});
  EXPECT_EQ(Read(cache).outcome, Outcome::kMiss);
  const PackedCacheResult written = Write(cache);
  EXPECT_EQ(written.outcome, Outcome::kWritten) << written.words;
  EXPECT_EQ(written.file_bytes, static_cast<int64_t>(std::filesystem::file_size(file())));
  EXPECT_THAT(written.words, HasSubstr(absl::StrCat(written.file_bytes, " bytes")));
  for (const int num_threads : {1, 2, 7}) {
    EXPECT_EQ(Read(cache, num_threads).outcome, Outcome::kHit);
  }
  EXPECT_EQ(cache.Count(Outcome::kHit), 3);
  EXPECT_EQ(cache.Count(Outcome::kMiss), 1);
  EXPECT_EQ(cache.Count(Outcome::kWritten), 1);
}

TEST_F(PackedCacheTest, WithoutAFolderDoesNothing) {
  PackedCache cache({});
  EXPECT_EQ(Read(cache).outcome, Outcome::kOff);
  EXPECT_EQ(Write(cache).outcome, Outcome::kOff);
}

TEST_F(PackedCacheTest, IsItsUsersAlone) {
  PackedCache cache({kept()});
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
  struct stat facts = {};
  ASSERT_EQ(stat(file().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(kept().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
  ASSERT_EQ(chmod(file().c_str(), 0622), 0);
  const PackedCacheResult read = Read(cache);
  EXPECT_EQ(read.outcome, Outcome::kInvalid);
  EXPECT_THAT(read.words, HasSubstr("may be written by other users"));
}

// Every part of the file: head, identity, table, padding, first and last section.
TEST_F(PackedCacheTest, AFlippedBitAnywhereIsNoticed) {
  PackedCache cache({kept()});
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
  const std::string right = Bytes();
  const size_t data_begin = right.size() - kDataBytes;
  std::vector<size_t> places = {0,
                                8,
                                12,
                                16,
                                24,
                                32,
                                40,
                                48,
                                56,
                                64,
                                100,
                                data_begin - 1,
                                data_begin,
                                data_begin + kPackedSectionBytes,
                                right.size() - 1};
  for (size_t place = 65; place < data_begin; place += 97) places.push_back(place);
  int64_t num_invalid = 0;
  for (const size_t place : places) {
    std::string wrong = right;
    wrong[place] = static_cast<char>(wrong[place] ^ 0x10);
    Overwrite(wrong);
    const PackedCacheResult read = Read(cache);
    EXPECT_EQ(read.outcome, Outcome::kInvalid) << "byte " << place;
    EXPECT_THAT(read.words, HasSubstr("the checkpoint is read instead")) << place;
    EXPECT_EQ(cache.Count(Outcome::kInvalid), ++num_invalid);
  }
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);  // anew
  EXPECT_EQ(Read(cache).outcome, Outcome::kHit);
}

TEST_F(PackedCacheTest, ACutOrGrownFileIsNoticed) {
  PackedCache cache({kept()});
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
  const std::string right = Bytes();
  for (const size_t size :
       {size_t{0}, size_t{10}, size_t{64}, size_t{200}, right.size() / 2, right.size() - 1}) {
    Overwrite(right.substr(0, size));
    EXPECT_EQ(Read(cache).outcome, Outcome::kInvalid) << size;
  }
  Overwrite(right + "x");
  EXPECT_EQ(Read(cache).outcome, Outcome::kInvalid);
  // Whole sections that changed places.
  std::string swapped = right;
  const size_t begin = right.size() - kDataBytes;
  std::swap_ranges(swapped.begin() + static_cast<int64_t>(begin),
                   swapped.begin() + static_cast<int64_t>(begin + kPackedSectionBytes),
                   swapped.begin() + static_cast<int64_t>(begin + kPackedSectionBytes));
  Overwrite(swapped);
  EXPECT_EQ(Read(cache).outcome, Outcome::kInvalid);
}

TEST_F(PackedCacheTest, AnotherTierOrSetOfExpertsFindsNothing) {
  PackedCache cache({kept()});
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
  const PackedKey right = key_;
  key_.layout = "bf16-32x32-within-chain-1";
  EXPECT_EQ(Read(cache).outcome, Outcome::kMiss);
  key_ = right;
  key_.contents = "0:0-3 1:0-2";
  EXPECT_EQ(Read(cache).outcome, Outcome::kMiss);
  key_ = right;
  key_.role = "attention";
  EXPECT_EQ(Read(cache).outcome, Outcome::kMiss);
  // Not even under the right name.
  const std::string file_of_experts = kept() + "/" + PackedFileName(*checkpoint_, right);
  std::filesystem::copy_file(file_of_experts, file());
  std::filesystem::permissions(file(), std::filesystem::perms(0600));
  EXPECT_EQ(Read(cache).outcome, Outcome::kStale);
}

TEST_F(PackedCacheTest, AnotherCheckpointOfTheSameSizesFindsNothing) {
  PackedCache cache({kept()});
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
  const std::string file_of_first = file();
  MiniCheckpoint other;
  other.seed = 1;
  other.Write(model());
  Open();
  EXPECT_NE(file(), file_of_first) << "another model hash";
  EXPECT_EQ(Read(cache).outcome, Outcome::kMiss);
  std::filesystem::rename(file_of_first, file());
  EXPECT_EQ(Read(cache).outcome, Outcome::kStale);
}

// What the model's hash does not read: a weight outside its sample, in a file of the same size.
TEST_F(PackedCacheTest, AChangeThatTheModelsHashDoesNotSeeIsNoticed) {
  PackedCache cache({kept()});
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
  const std::string shard = model() + "/" + checkpoint_->directory().files()[0]->base_name();
  const uint64_t before = checkpoint_->model_hash();
  struct stat facts = {};
  ASSERT_EQ(stat(shard.c_str(), &facts), 0);
  const timespec times[2] = {facts.st_atim, facts.st_mtim};
  std::string bytes = ReadFileBytes(shard);
  {
    std::fstream out(shard, std::ios::binary | std::ios::in | std::ios::out);
    out.write(bytes.data(), 8);  // as it was
  }
  // Even where the time of its content is put back.
  ASSERT_EQ(utimensat(AT_FDCWD, shard.c_str(), times, 0), 0);
  Open();
  EXPECT_EQ(checkpoint_->model_hash(), before);
  const PackedCacheResult read = Read(cache);
  EXPECT_EQ(read.outcome, Outcome::kStale);
  EXPECT_THAT(read.words, HasSubstr("was made of other files than the checkpoint has now"));
  EXPECT_EQ(Write(cache).outcome, Outcome::kWritten);
  EXPECT_EQ(Read(cache).outcome, Outcome::kHit);
}

TEST_F(PackedCacheTest, KeepsNothingOfFilesThatChangedMeanwhile) {
  PackedCache cache({kept()});
  source_.text += "file other\n";
  const PackedCacheResult changed = Write(cache);
  EXPECT_EQ(changed.outcome, Outcome::kRefused);
  EXPECT_THAT(changed.words, HasSubstr("changed while they were read"));
  source_ = *PackedSource::Of(*checkpoint_);
  source_.is_settled = false;
  EXPECT_THAT(Write(cache).words, HasSubstr("a moment before"));
  EXPECT_FALSE(std::filesystem::exists(file()));
}

TEST_F(PackedCacheTest, FollowsNoLink) {
  PackedCache cache({kept()});
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
  const std::string elsewhere = folder_.File("elsewhere");
  std::filesystem::rename(file(), elsewhere);
  std::filesystem::create_symlink(elsewhere, file());
  const std::string before = ReadFileBytes(elsewhere);
  const PackedCacheResult read = Read(cache);
  EXPECT_EQ(read.outcome, Outcome::kInvalid);
  EXPECT_THAT(read.words, HasSubstr("is a link"));
  // The link is replaced, what it pointed to is left alone.
  data_ = Pattern(2);
  EXPECT_EQ(Write(cache).outcome, Outcome::kWritten);
  EXPECT_FALSE(std::filesystem::is_symlink(file()));
  EXPECT_EQ(ReadFileBytes(elsewhere), before);
  EXPECT_EQ(Read(cache).outcome, Outcome::kHit);
}

TEST_F(PackedCacheTest, GoesOnWithoutAFolder) {
  std::ofstream(folder_.File("a file")) << "x";
  PackedCache blocked({folder_.File("a file")});
  EXPECT_EQ(Read(blocked).outcome, Outcome::kMiss);
  const PackedCacheResult refused = Write(blocked);
  EXPECT_EQ(refused.outcome, Outcome::kRefused);
  EXPECT_THAT(refused.words, HasSubstr("cannot be used"));
  PackedCache lost({folder_.File("no/such/parent")});
  EXPECT_EQ(Write(lost).outcome, Outcome::kRefused);
}

TEST_F(PackedCacheTest, GoesOnWhereItMayNotWrite) {
  PackedCache cache({"/proc"});  // nobody makes files there, not even root
  EXPECT_EQ(Read(cache).outcome, Outcome::kMiss);
  const PackedCacheResult refused = Write(cache);
  EXPECT_EQ(refused.outcome, Outcome::kRefused);
  EXPECT_THAT(refused.words, HasSubstr("nothing is kept for the next start"));
}

TEST_F(PackedCacheTest, ALimitOfFileSizesIsAWarningNotADeath) {
  // In a child: a limit cannot be raised again by everybody.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit small = {kDataBytes / 2, kDataBytes / 2};
    PackedCache cache({kept()});
    const bool is_limited = setrlimit(RLIMIT_FSIZE, &small) == 0;
    const PackedCacheResult result = cache.Write(*checkpoint_, key_, source_, data_, 1);
    const bool is_right = is_limited && result.outcome == Outcome::kRefused &&
                          absl::StrContains(result.words, "ulimit -f") &&
                          std::filesystem::is_empty(kept());
    _exit(is_right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(PackedCacheTest, RefusesMoreThanTheDiskHas) {
  std::filesystem::create_directory(kept());
  const auto folder = PackedFolder::Open(kept());
  ASSERT_TRUE(folder.ok());
  const absl::Status status = folder->MakeRoom("experts-1-2.packed", int64_t{1} << 60, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("the file system has"));
}

TEST_F(PackedCacheTest, RemovesWhatWasOfUseLongestAgoToKeepToItsLimit) {
  const auto room_for = [&](int count) {
    return count * PackedFileBytes(std::string(4096, 'x'), kDataBytes);
  };
  PackedCache cache({kept(), room_for(2)});
  std::ofstream(folder_.File("unrelated")) << "x";
  std::vector<std::string> files;
  for (const char* contents : {"0:0", "0:1", "0:2"}) {
    key_.contents = contents;
    ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
    files.push_back(file());
    std::ofstream(kept() + "/notes.txt") << "not of the cache";
    // The first was of use after the second was written.
    timespec times[2] = {{0, UTIME_NOW}, {1000 + static_cast<time_t>(files.size()), 0}};
    if (files.size() == 1) times[1].tv_sec = 2000;
    ASSERT_EQ(utimensat(AT_FDCWD, file().c_str(), times, 0), 0);
  }
  EXPECT_TRUE(std::filesystem::exists(files[0]));
  EXPECT_FALSE(std::filesystem::exists(files[1]));
  EXPECT_TRUE(std::filesystem::exists(files[2]));
  EXPECT_TRUE(std::filesystem::exists(kept() + "/notes.txt"));
  PackedCache tiny({kept(), 1000});
  key_.contents = "0:3";
  const PackedCacheResult refused = Write(tiny);
  EXPECT_EQ(refused.outcome, Outcome::kRefused);
  EXPECT_THAT(refused.words, HasSubstr("the cache may have 1000"));
  EXPECT_TRUE(std::filesystem::exists(files[0])) << "nothing was removed for it";
}

TEST_F(PackedCacheTest, RemovesWhatDeadWritersLeftAndLeavesTheLiving) {
  std::filesystem::create_directory(kept());
  const std::string dead = kept() + "/experts-1-2.packed.new-dead";
  const std::string living = kept() + "/experts-1-2.packed.new-living";
  std::ofstream(dead) << "half";
  const int fd = open(living.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  PackedCache cache({kept()});
  EXPECT_EQ(Write(cache).outcome, Outcome::kWritten);
  EXPECT_FALSE(std::filesystem::exists(dead));
  EXPECT_TRUE(std::filesystem::exists(living));
  // Another process writes the very same: one is enough.
  const std::string same = absl::StrCat(file(), ".new-other");
  std::filesystem::rename(living, same);
  const PackedCacheResult refused = Write(cache);
  EXPECT_EQ(refused.outcome, Outcome::kRefused);
  EXPECT_THAT(refused.words, HasSubstr("another process is writing the same"));
  close(fd);
  EXPECT_EQ(Write(cache).outcome, Outcome::kWritten);
  EXPECT_FALSE(std::filesystem::exists(same));
}

// Readers find a whole file or none, whatever writers do.
TEST_F(PackedCacheTest, ManyProcessesMayUseOneFolder) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      PackedCache cache({kept()});
      bool is_right = true;
      for (int round = 0; round < 8; ++round) {
        const Outcome written = cache.Write(*checkpoint_, key_, source_, data_, 1).outcome;
        is_right &= written == Outcome::kWritten || written == Outcome::kRefused;
        std::vector<uint8_t> out(kDataBytes);
        const Outcome read = cache.Read(*checkpoint_, key_, absl::MakeSpan(out), 1).outcome;
        is_right &= read == Outcome::kMiss || (read == Outcome::kHit && out == data_);
      }
      _exit(is_right ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  PackedCache cache({kept()});
  EXPECT_EQ(Read(cache).outcome, Outcome::kHit);
  // Nothing half is left.
  ASSERT_EQ(Write(cache).outcome, Outcome::kWritten);
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kept())) {
    ++num_files;
    EXPECT_EQ(entry.path().string(), file());
  }
  EXPECT_EQ(num_files, 1u);
}

// Who makes room for one file looks at the other's, which is made and locked in two steps.
TEST_F(PackedCacheTest, WritersOfTwoFilesDoNotRemoveEachOthers) {
  const PackedFolder folder = *PackedFolder::Open(kept());
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) EXPECT_TRUE(folder.MakeRoom("b.packed", 1, 0).ok());
  });
  for (int i = 0; i < 1000; ++i) {
    absl::StatusOr<NewPackedFile> file = folder.Create("a.packed");
    EXPECT_TRUE(file.ok() && file->Publish().ok()) << i;
  }
  is_over = true;
  other.join();
}

}  // namespace
}  // namespace moebius
