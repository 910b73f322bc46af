// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace moebius {

/// Whose budget a line of the log counts against.
struct LogSource {
  std::string
      peer;  // PeerOfAddress, or a client's name: what others cannot choose; empty: nobody's
  std::string kind;  // the same for all lines of one kind; empty: the line's sentence
};

/// "10.0.0.9" of "10.0.0.9:4711", "[::1]" of "[::1]:4711" and the same of gRPC's "ipv4:…" and
/// "ipv6:…": a peer is the host that it comes from, as it may choose any port. Others as they are.
absl::string_view PeerOfAddress(absl::string_view address);

struct LogLimits {
  int max_lines = 10;  // of one kind and peer, in a window
  absl::Duration window = absl::Minutes(1);
  size_t max_kinds = 256;  // that are nobody's, and are counted apart
  size_t max_peers = 128;  // and kinds of theirs
};

/// What was not written in one window.
struct LogHeldBack {
  uint64_t lines = 0;
  size_t peers = 0;         // who had some of them; a lower bound when they are many
  std::string most_of;      // the peer or the kind that had most of the first max_peers
  uint64_t most_lines = 0;  // its
};

/// Says of each line of a log whether it may be written now, so that nobody can flood it, and no
/// peer can blot out what is said of another: each has a budget of its own for each kind of line.
///
/// Bounded: kinds and peers beyond the limits share one budget each; budgets whose window is over
/// make room. Within a window peers have at most (max_peers + 1) * max_lines lines, all others
/// (max_kinds + 1) * max_lines. Not thread-safe.
class LogLimit {
 public:
  explicit LogLimit(const LogLimits& limits) : limits_(limits) {}

  /// Writes what the budget's former window has held back into `held_back`.
  bool Allows(const LogSource& source, absl::Duration now, uint64_t* held_back);

  /// When TakeHeldBack has something to say: a window after the first line that was not written.
  absl::Duration due() const { return due_; }
  /// What was held back since the last call; nothing before due().
  std::optional<LogHeldBack> TakeHeldBack(absl::Duration now);

 private:
  struct Budget {
    absl::Duration begin;
    int lines = 0;
    uint64_t held_back = 0;
  };
  using Budgets = std::map<std::string, Budget>;

  Budget& Find(const std::string& key, absl::Duration now, size_t max_budgets, Budgets& budgets,
               Budget& others) const;
  void NoteHeldBack(const LogSource& source, absl::Duration now);

  const LogLimits limits_;
  Budgets of_kinds_, of_peers_;
  Budget other_kinds_, other_peers_;
  absl::Duration due_ = absl::InfiniteDuration();
  LogHeldBack held_back_;
  std::map<std::string, uint64_t> held_back_of_;  // at most max_peers
  std::set<std::string> peers_held_back_;         // at most max_peers
};

}  // namespace moebius
