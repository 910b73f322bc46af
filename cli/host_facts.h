// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moebius {

/// The name that the operating system gives this machine.
std::string HostName();

/// What the CPU calls itself, e.g. "AMD EPYC"; "unknown CPU" where it says nothing.
std::string CpuName();

}  // namespace moebius
