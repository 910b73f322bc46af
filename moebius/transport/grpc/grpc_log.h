// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace moebius {

/// gRPC's own errors go to `write`, one line each and at most kMaxGrpcLogLines a minute; the rest
/// is counted, and all that is less than an error is dropped. Once per process; later calls replace
/// `write`, and null means standard error.
void InstallGrpcLog(std::function<void(const std::string& line)> write);

/// Makes sure that a log is installed: to standard error unless InstallGrpcLog came before.
void EnsureGrpcLog();

/// Lines that were held back since the start.
uint64_t GrpcLogLinesHeldBack();

inline constexpr int kMaxGrpcLogLines = 10;

}  // namespace moebius
