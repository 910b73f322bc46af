// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moebius {

/// What CPUID says of the AMX tiles, under the names of /proc/cpuinfo.
struct TileInstructions {
  bool amx_tile = false;
  bool amx_bf16 = false;
};
TileInstructions FindTileInstructions();

/// Asks Linux for the state of the AMX tiles (8 KiB a thread, set aside where a thread first uses
/// them), for all threads of this process, until it ends. Empty when granted, else why not: an old
/// kernel, a seccomp filter, a signal stack too small for the state. Asking again is harmless; a
/// thread that uses a tile without the grant dies of SIGILL. Thread-safe.
std::string RequestTileState();

}  // namespace moebius
