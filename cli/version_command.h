// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace moebius {

/// Where this program's file is, or "?".
std::string OwnPath();

/// The first line of `moebius version`: "moebius 0.1.0".
std::string VersionLine();

/// Version, own path, compiler and the kernel tiers of this host; runs on any x86-64.
int RunVersion(bool json);

}  // namespace moebius
