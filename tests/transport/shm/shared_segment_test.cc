// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "gtest/gtest.h"

namespace moebius {
namespace {

constexpr uint64_t kRingBytes = 2 * kSegmentPageBytes;
constexpr off_t kBytes = kSegmentPageBytes + 2 * kRingBytes;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

OwnedFd Memory(off_t bytes, int seals, unsigned flags = 0) {
  OwnedFd memory(memfd_create("test", MFD_ALLOW_SEALING | flags));
  if (memory.fd() < 0) return memory;
  EXPECT_EQ(ftruncate(memory.fd(), bytes), 0) << std::strerror(errno);
  EXPECT_EQ(fcntl(memory.fd(), F_ADD_SEALS, seals), 0) << std::strerror(errno);
  return memory;
}

TEST(SharedSegmentTest, BothEndsSeeTheSameRingsAndEachRingOnlyItself) {
  auto created = SharedSegment::Create(kRingBytes);
  ASSERT_TRUE(created.ok()) << created.status();
  auto mapped = SharedSegment::Map(created->memory, kRingBytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  for (const int index : {0, 1}) {
    const RingMemory here = created->segment->ring(index);
    const RingMemory there = (*mapped)->ring(index);
    EXPECT_EQ(here.control->written.load(), 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(here.data) % kSegmentPageBytes, 0u);
    here.control->written.store(7 + index);
    std::memset(here.data, 0x10 + index, here.bytes);
    EXPECT_EQ(there.control->written.load(), 7u + index);
    EXPECT_EQ(there.data[0], 0x10 + index);
    EXPECT_EQ(there.data[there.bytes - 1], 0x10 + index);
  }
  EXPECT_EQ((*mapped)->ring(0).data[kRingBytes - 1], 0x10);
  EXPECT_EQ((*mapped)->ring(0).control->written.load(), 7u);
}

TEST(SharedSegmentTest, NobodyCanChangeItsSizeOrItsSeals) {
  auto created = SharedSegment::Create(kRingBytes);
  ASSERT_TRUE(created.ok());
  const int fd = created->memory.fd();
  EXPECT_NE(ftruncate(fd, 0), 0);
  EXPECT_EQ(errno, EPERM);
  EXPECT_NE(ftruncate(fd, 2 * kBytes), 0);
  EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  // What can be done is to empty it, and empty memory is zeros.
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes), 0);
  EXPECT_EQ(created->segment->ring(1).data[kRingBytes - 1], 0);
}

TEST(SharedSegmentTest, MapsOnlySealedMemoryOfTheRightSize) {
  EXPECT_TRUE(SharedSegment::Map(Memory(kBytes, kSizeSeals | F_SEAL_SEAL), kRingBytes).ok());
  const OwnedFd wrong[] = {
      Memory(kBytes, kSizeSeals),                               // seals could be added
      Memory(kBytes, F_SEAL_SHRINK | F_SEAL_SEAL),              // could grow
      Memory(kBytes, F_SEAL_GROW | F_SEAL_SEAL),                // could shrink
      Memory(kBytes, kSizeSeals | F_SEAL_WRITE | F_SEAL_SEAL),  // nobody could write
      Memory(kBytes - 1, kSizeSeals | F_SEAL_SEAL),             // too small
      Memory(kBytes + 4096, kSizeSeals | F_SEAL_SEAL),          // too large
      Memory(0, kSizeSeals | F_SEAL_SEAL),                      //
      Memory(2 << 20, kSizeSeals | F_SEAL_SEAL, MFD_HUGETLB),   // may be missing when touched
  };
  for (const OwnedFd& memory : wrong) {
    const auto mapped = SharedSegment::Map(memory, kRingBytes);
    EXPECT_EQ(mapped.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(SharedSegmentTest, MapsNothingThatIsNoMemory) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const OwnedFd in(pipe_ends[0]);
  const OwnedFd out(pipe_ends[1]);
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), std::fclose);
  ASSERT_NE(file, nullptr);
  const OwnedFd on_disk(dup(fileno(file.get())));
  ASSERT_EQ(ftruncate(on_disk.fd(), kBytes), 0);
  const OwnedFd folder(open("/", O_RDONLY | O_DIRECTORY));
  const OwnedFd none;
  for (const OwnedFd* wrong : {&in, &out, &on_disk, &folder, &none}) {
    EXPECT_EQ(SharedSegment::Map(*wrong, kRingBytes).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(SharedSegmentTest, MoreMemoryThanThereIsIsAnErrorAtOnce) {
  const auto created = SharedSegment::Create(uint64_t{1} << 61);
  EXPECT_EQ(created.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace moebius
