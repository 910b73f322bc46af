// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/cpu/tile_state.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

// Of <asm/prctl.h> since Linux 5.16, and the tiles' number among the extended states.
constexpr long kRequestStatePermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;                    // XFEATURE_XTILEDATA

// CPUID leaf 7, EDX.
constexpr unsigned kAmxBf16Bit = 1u << 22;
constexpr unsigned kAmxTileBit = 1u << 24;

}  // namespace

TileInstructions FindTileInstructions() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return {};
  return {.amx_tile = (edx & kAmxTileBit) != 0, .amx_bf16 = (edx & kAmxBf16Bit) != 0};
}

std::string RequestTileState() {
  if (syscall(SYS_arch_prctl, kRequestStatePermission, kTileData) == 0) return "";
  return absl::StrCat("Linux refuses the tiles' state: ", std::generic_category().message(errno));
}

}  // namespace moebius
