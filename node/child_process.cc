// SPDX-License-Identifier: Apache-2.0
#include "node/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

extern char** environ;

namespace moebius {
namespace {

// A child that talks without end of line is not listened to for ever.
constexpr size_t kMaxLineBytes = 64 << 10;

absl::Status SystemError(int error, const std::string& what) {
  return absl::Status(absl::ErrnoToStatusCode(error), absl::StrCat(what, ": ", strerror(error)));
}

// What posix_spawn is told; freed in the end.
class SpawnSetup {
 public:
  SpawnSetup(int out, int log) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, log, STDERR_FILENO);
    posix_spawnattr_init(&attributes_);
    // Signals as a fresh process has them, whatever the starter blocks.
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  int Spawn(pid_t* pid, char* const* words) const {
    return posix_spawn(pid, words[0], &actions_, &attributes_, words, environ);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

}  // namespace

std::string ChildEndWords(const ChildEnd& end) {
  if (end.signal.has_value()) {
    const char* name = sigabbrev_np(*end.signal);
    return absl::StrCat("was killed by SIG", name == nullptr ? "?" : name);
  }
  return absl::StrCat("ended with exit code ", end.exit_code.value_or(-1));
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& command,
                                                 const std::string& log_file) {
  const OwnedFd log(open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.fd() < 0) {
    return SystemError(errno, log_file);
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError(errno, "a pipe to a child");
  OwnedFd out(ends[0]);
  const OwnedFd in(ends[1]);
  fcntl(out.fd(), F_SETFL, O_NONBLOCK);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  pid_t pid = -1;
  const int error = SpawnSetup(in.fd(), log.fd()).Spawn(&pid, words.data());
  if (error != 0) return SystemError(error, command[0]);
  return ChildProcess(pid, std::move(out));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      stdout_(std::move(other.stdout_)),
      partial_(std::move(other.partial_)),
      end_(other.end_) {}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || end_.has_value()) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::vector<std::string> ChildProcess::ReadLines() {
  char buffer[4096];
  while (stdout_.fd() >= 0) {
    const ssize_t size = read(stdout_.fd(), buffer, sizeof(buffer));
    if (size > 0) {
      partial_.append(buffer, static_cast<size_t>(size));
      if (partial_.size() > kMaxLineBytes) break;
    } else if (size < 0 && errno == EINTR) {
      continue;
    } else {
      if (size == 0) stdout_.Close();
      break;
    }
  }
  std::vector<std::string> lines = absl::StrSplit(partial_, '\n');
  partial_ = lines.back();
  lines.pop_back();
  if (partial_.size() > kMaxLineBytes) partial_.clear();
  return lines;
}

std::optional<ChildEnd> ChildProcess::TryWait() {
  if (end_.has_value()) return end_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  ChildEnd end;
  if (WIFSIGNALED(status)) {
    end.signal = WTERMSIG(status);
  } else {
    end.exit_code = WEXITSTATUS(status);
  }
  end_ = end;
  return end_;
}

void ChildProcess::Signal(int signal_number) const {
  if (!end_.has_value()) kill(pid_, signal_number);
}

std::string LastLines(const std::string& path, size_t max_bytes) {
  const OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) return "";
  const off_t size = lseek(file.fd(), 0, SEEK_END);
  const off_t begin =
      size > static_cast<off_t>(max_bytes) ? size - static_cast<off_t>(max_bytes) : 0;
  std::string text(static_cast<size_t>(size - begin), '\0');
  const ssize_t got = pread(file.fd(), text.data(), text.size(), begin);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  // A line that was cut in two is left out.
  if (begin > 0) text.erase(0, text.find('\n') == std::string::npos ? 0 : text.find('\n') + 1);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace moebius
