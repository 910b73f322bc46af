// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/pipe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "moebius/base/clock.h"
#include "moebius/base/status.h"

extern char** environ;

namespace moebius {
namespace {

constexpr size_t kMaxLineBytes = size_t{64} << 10;

absl::Status SystemError(absl::string_view call, int error) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(error)));
}

struct Pipe {
  OwnedFd out;  // to read from
  OwnedFd in;
};

absl::StatusOr<Pipe> MakePipe() {
  int descriptors[2];
  if (pipe2(descriptors, O_CLOEXEC) != 0) return SystemError("pipe2", errno);
  return Pipe{OwnedFd(descriptors[0]), OwnedFd(descriptors[1])};
}

// posix_spawn's list of what to do with descriptors.
class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  void Duplicate(int from, int to) { posix_spawn_file_actions_adddup2(&actions_, from, to); }
  void Discard(int descriptor) {
    posix_spawn_file_actions_addopen(&actions_, descriptor, "/dev/null", O_WRONLY, 0);
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

// As exec wants them; `words` must outlive the result.
std::vector<char*> PointersTo(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::StatusOr<PipedChild> StartPiped(const PipedCommand& command) {
  MOEBIUS_ASSIGN_OR_RETURN(Pipe input, MakePipe());
  MOEBIUS_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  FileActions actions;
  actions.Duplicate(input.out.fd(), STDIN_FILENO);
  actions.Duplicate(output.in.fd(), STDOUT_FILENO);
  if (command.is_silent) actions.Discard(STDERR_FILENO);
  if (command.inherited >= 0) actions.Duplicate(command.inherited, command.inherited_as);
  std::vector<std::string> words = command.words;
  std::vector<std::string> environment = command.environment;
  // The first of two variables of one name counts.
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  pid_t pid = 0;
  const int error = posix_spawn(&pid, command.path.c_str(), actions.get(), nullptr,
                                PointersTo(words).data(), PointersTo(environment).data());
  if (error != 0) return SystemError(absl::StrCat("cannot start ", command.path), error);
  return PipedChild{pid, std::move(input.in), std::move(output.out)};
}

absl::StatusOr<std::string> ReadLineFrom(int fd, absl::Duration patience) {
  const absl::Duration end = Clock::Monotonic().Now() + patience;
  std::string line;
  while (line.size() < kMaxLineBytes) {
    const absl::Duration left = end - Clock::Monotonic().Now();
    pollfd waiting = {fd, POLLIN, 0};
    const int ready = left > absl::ZeroDuration()
                          ? poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1)
                          : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return absl::DeadlineExceededError("the other process said nothing in time");
    char byte = 0;
    const ssize_t size = read(fd, &byte, 1);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return absl::UnavailableError("the other process has ended");
    if (byte == '\n') return line;
    line.push_back(byte);
  }
  return absl::InternalError("the other process does not end its line");
}

void ReapChild(pid_t pid, absl::Duration patience) {
  const absl::Duration end = Clock::Monotonic().Now() + patience;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (Clock::Monotonic().Now() > end) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      return;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace moebius
