// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/peer_program.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cli/bench/pipe.h"

#include "moebius/base/error.h"
#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// How long it may take to start and to answer, and to end before it is killed.
// A peer may make gigabytes of weights before its first answer.
constexpr absl::Duration kAnswerPatience = absl::Minutes(5);
constexpr absl::Duration kEndPatience = absl::Seconds(5);
constexpr char kUnsupported[] = "unsupported";

absl::Status WriteAll(int fd, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t size = write(fd, text.data() + written, text.size() - written);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return absl::UnavailableError("it reads no questions any more");
    written += static_cast<size_t>(size);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerProgram>> PeerProgram::Start(const std::string& command,
                                                                const std::string& tier,
                                                                int num_threads) {
  // A peer that has ended is an error of its own, not this program's end.
  signal(SIGPIPE, SIG_IGN);
  PipedCommand piped;
  piped.path = "/bin/sh";
  // exec: the shell must not stay between this process and the program that it ends.
  piped.words = {"sh", "-c", absl::StrCat("exec ", command)};
  piped.environment = {absl::StrCat("MOEBIUS_BENCH_TIER=", tier),
                       absl::StrCat("MOEBIUS_BENCH_THREADS=", num_threads),
                       absl::StrCat("OMP_NUM_THREADS=", num_threads),
                       // Threads that spin after their work would slow down what comes next.
                       "OMP_WAIT_POLICY=passive"};
  absl::StatusOr<PipedChild> child = StartPiped(piped);
  if (!child.ok()) return child.status();
  std::unique_ptr<PeerProgram> peer(
      new PeerProgram(child->pid, std::move(child->input), std::move(child->output)));
  absl::StatusOr<std::string> name = peer->ReadLine(kAnswerPatience);
  if (!name.ok()) {
    return WithHint(WithContext(name.status(), absl::StrCat("--peer ", command)),
                    "its first line must be its name; bench/README.md has what it is asked");
  }
  peer->name_ = *std::move(name);
  return peer;
}

PeerProgram::~PeerProgram() {
  input_.Close();
  ReapChild(pid_, kEndPatience);
}

absl::StatusOr<std::string> PeerProgram::ReadLine(absl::Duration patience) {
  return ReadLineFrom(output_.fd(), patience);
}

absl::StatusOr<std::optional<double>> PeerProgram::Ask(const std::string& question) {
  MOEBIUS_RETURN_IF_ERROR(WithContext(WriteAll(input_.fd(), question + "\n"), name_));
  const absl::StatusOr<std::string> answer = ReadLine(kAnswerPatience);
  if (!answer.ok()) return WithContext(answer.status(), name_);
  if (*answer == kUnsupported) return std::optional<double>();
  const absl::StatusOr<double> seconds = ParseNumber(question, *answer);
  if (!seconds.ok() || *seconds <= 0) {
    return absl::InternalError(
        absl::StrCat(name_, " answers '", *answer, "' to '", question, "', which is no time"));
  }
  return std::optional<double>(*seconds);
}

}  // namespace moebius
