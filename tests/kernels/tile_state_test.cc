// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/cpu/tile_state.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <string>
#include <thread>

#include "moebius/kernels/block_gemm.h"
#include "tests/kernels/kernel_data.h"

namespace moebius {
namespace {

using testing::FillNormal;
using testing::GuardedRows;

// From now on this process may not ask for a further processor state, as in a strict container.
bool ForbidStateRequests() {
  constexpr uint32_t kRequestStatePermission = 0x1023;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRequestStatePermission, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {.len = std::size(program), .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(TileStateTest, ARefusalIsSaidInWords) {
  EXPECT_EXIT(
      {
        if (!ForbidStateRequests()) _exit(2);
        const std::string refusal = RequestTileState();
        std::fprintf(stderr, "%s\n", refusal.c_str());
        _exit(refusal.empty() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "Linux refuses the tiles' state: Operation not permitted");
}

TEST(TileStateTest, ARefusedTierIsNotUsable) {
  // In a process of its own, which has not asked yet.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (!ForbidStateRequests()) _exit(2);
        const TierReport& report = TierReports()[static_cast<size_t>(Tier::kAmx)];
        std::fprintf(stderr, "%s\n", report.reason.c_str());
        _exit(report.usable || BestKernels().tier == Tier::kAmx ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "Linux refuses the tiles' state: |this CPU lacks ");
}

// Extended states of this thread that are not as at the start of a process: XGETBV 1.
uint64_t StatesInUse() {
  uint32_t low = 0;
  uint32_t high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return static_cast<uint64_t>(high) << 32 | low;
}

TEST(TileStateTest, NoThreadKeepsItsTiles) {
  const TierReport& report = TierReports()[static_cast<size_t>(Tier::kAmx)];
  if (!report.usable) MOEBIUS_SKIP("tier amx cannot run on this host: " + report.reason);
  constexpr uint64_t kTileConfigAndData = uint64_t{3} << 17;
  const Kernels& kernels = *FindKernels(Tier::kAmx);
  GuardedRows<Bf16> rows(40, 100);
  GuardedRows<Bf16> weights(70, 100);
  FillNormal(rows.rows(), 1);
  FillNormal(weights.rows(), 2);
  const PackedMatrix matrix = PackedMatrix::Pack(weights.rows(), kernels.pair_order);
  const auto multiply = [&] {
    GuardedRows<float> out(40, 70);
    MatMul(kernels, rows.rows(), matrix, out.rows());
    EXPECT_EQ(StatesInUse() & kTileConfigAndData, 0u);
  };
  multiply();
  std::thread other(multiply);
  other.join();
}

}  // namespace
}  // namespace moebius
