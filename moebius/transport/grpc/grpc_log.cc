// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdio>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"

namespace moebius {
namespace {

// gRPC has one log per process, so this is one too; never destroyed, because gRPC's threads may
// outlive static objects.
struct Log {
  Mutex mutex;
  std::function<void(const std::string&)> write MOEBIUS_GUARDED_BY(mutex);
  bool is_installed MOEBIUS_GUARDED_BY(mutex) = false;
  absl::Duration minute MOEBIUS_GUARDED_BY(mutex) = -absl::InfiniteDuration();
  int lines MOEBIUS_GUARDED_BY(mutex) = 0;
  uint64_t held_back MOEBIUS_GUARDED_BY(mutex) = 0;
};

Log& TheLog() {
  static Log* const log = new Log;
  return *log;
}

void Write(gpr_log_func_args* args) {
  if (args->severity != GPR_LOG_SEVERITY_ERROR) return;
  std::string line = absl::StrCat("grpc: ", args->message);
  for (char& c : line) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = ' ';
  }
  Log& log = TheLog();
  std::function<void(const std::string&)> write;
  {
    MutexLock lock(log.mutex);
    const absl::Duration now = Clock::Monotonic().Now();
    if (now - log.minute >= absl::Minutes(1)) {
      log.minute = now;
      log.lines = 0;
    }
    if (log.lines == kMaxGrpcLogLines) {
      ++log.held_back;
      return;
    }
    ++log.lines;
    write = log.write;
  }
  if (write != nullptr) {
    write(line);
  } else {
    std::fprintf(stderr, "%s\n", line.c_str());
  }
}

}  // namespace

void InstallGrpcLog(std::function<void(const std::string& line)> write) {
  Log& log = TheLog();
  MutexLock lock(log.mutex);
  log.write = std::move(write);
  log.is_installed = true;
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
  gpr_set_log_function(Write);
}

void EnsureGrpcLog() {
  {
    Log& log = TheLog();
    MutexLock lock(log.mutex);
    if (log.is_installed) return;
  }
  InstallGrpcLog(nullptr);
}

uint64_t GrpcLogLinesHeldBack() {
  Log& log = TheLog();
  MutexLock lock(log.mutex);
  return log.held_back;
}

}  // namespace moebius
