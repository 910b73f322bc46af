// SPDX-License-Identifier: Apache-2.0
#include "node/weight_bytes.h"

#include "gtest/gtest.h"

#include "tests/node/expected_cases.h"

namespace moebius {
namespace {

TEST(ReplicasThatFitTest, AreTwoWhereThereIsRoomForTwo) {
  const auto checkpoint = Checkpoint::Open(DemoFolder(), CheckpointOptions());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  constexpr int64_t kKv = 1 << 20;
  HostMemory memory;
  EXPECT_EQ(ReplicasThatFit(**checkpoint, 4, kKv, memory), 2) << "no limit is known";
  EXPECT_EQ(ReplicasThatFit(**checkpoint, 1, kKv, memory), 1);
  // The demo has 21 MB of weights, nearly all of them experts.
  memory.limit_bytes = 60 << 20;
  EXPECT_EQ(ReplicasThatFit(**checkpoint, 4, kKv, memory), 2);
  memory.limit_bytes = 30 << 20;
  EXPECT_EQ(ReplicasThatFit(**checkpoint, 4, kKv, memory), 1);
}

}  // namespace
}  // namespace moebius
