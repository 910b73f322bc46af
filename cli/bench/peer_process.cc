// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/peer_process.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "moebius/base/error.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// How long the other process may take to end before it is killed.
constexpr absl::Duration kEndPatience = absl::Seconds(15);

}  // namespace

absl::StatusOr<std::unique_ptr<PeerProcess>> PeerProcess::Start(
    const std::vector<std::string>& arguments, const PeerProcessOptions& options) {
  PipedCommand command;
  command.path = "/proc/self/exe";
  command.words = {"moebius"};
  command.words.insert(command.words.end(), arguments.begin(), arguments.end());
  command.inherited = options.inherited;
  command.inherited_as = kInheritedDescriptor;
  command.is_silent = options.is_silent;
  MOEBIUS_ASSIGN_OR_RETURN(PipedChild child, StartPiped(command));
  std::unique_ptr<PeerProcess> process(new PeerProcess(std::move(child), options.end));
  absl::StatusOr<std::string> line =
      ReadLineFrom(process->child_.output.fd(), options.start_patience);
  if (!line.ok()) return WithContext(line.status(), "at its start");
  process->line_ = *std::move(line);
  return process;
}

PeerProcess::~PeerProcess() {
  child_.input.Close();
  if (end_ == PeerEnd::kByTermination) kill(child_.pid, SIGTERM);
  ReapChild(child_.pid, kEndPatience);
}

void ServeUntilInputEnds(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  char byte = 0;
  while (true) {
    const ssize_t size = read(STDIN_FILENO, &byte, 1);
    if (size == 0 || (size < 0 && errno != EINTR)) return;
  }
}

}  // namespace moebius
