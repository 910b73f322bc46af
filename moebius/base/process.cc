// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/freed_memory.h"

namespace moebius {
namespace {

constexpr char kOutOfMemory[] =
    "error: out of memory\n"
    "hint: raise the limit (ulimit -v, the cgroup), or give a smaller --kv-budget or fewer "
    "--threads\n";

// There is no memory for a message that is put together here.
[[noreturn]] void EndWithoutMemory() {
  const ssize_t ignored = write(STDERR_FILENO, kOutOfMemory, sizeof(kOutOfMemory) - 1);
  static_cast<void>(ignored);
  _exit(kExitFatal);
}

[[noreturn]] void EndByException() {
  if (const std::exception_ptr thrown = std::current_exception(); thrown != nullptr) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      EndWithoutMemory();
    } catch (const std::system_error& error) {
      std::fprintf(stderr,
                   "error: the system refused a resource: %s\n"
                   "hint: raise the limits of this process (ulimit -u, -v, -n, the cgroup)\n",
                   error.what());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "error: unexpected failure: %s\n", error.what());
    } catch (...) {
    }
  }
  _exit(kExitFatal);
}

void OnAbort(int) { _exit(kExitFatal); }

void OpenStandardStream(int descriptor, int flags) {
  if (fcntl(descriptor, F_GETFD) >= 0) return;
  // The lowest free number is `descriptor`: those below it are open.
  if (open("/dev/null", flags) != descriptor) _exit(kExitHost);
}

void PrepareLoading(int, char**, char**) {
  std::set_new_handler(EndWithoutMemory);
  std::set_terminate(EndByException);
  OpenStandardStream(STDIN_FILENO, O_RDONLY);
  OpenStandardStream(STDOUT_FILENO, O_RDONLY);
  OpenStandardStream(STDERR_FILENO, O_WRONLY);
}

// Shared libraries open files and allocate when they are loaded (gRPC does both): only this comes
// before them.
__attribute__((section(".preinit_array"), used)) void (*prepare_first)(int, char**,
                                                                       char**) = PrepareLoading;

}  // namespace

void PrepareProcess() {
  signal(SIGXFSZ, SIG_IGN);
  signal(SIGABRT, OnAbort);
  KeepFreedMemory();
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

int FinishOutput(int exit_code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  if (exit_code != kExitOk) return exit_code;
  const std::string reason = errno == 0 ? "write error" : std::strerror(errno);
  std::fprintf(stderr, "%s\n",
               FormatError(absl::UnavailableError("cannot write the output: " + reason)).c_str());
  return kExitFailed;
}

}  // namespace moebius
