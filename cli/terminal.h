// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/base/clock.h"

namespace moebius {

/// What may be written to a file descriptor.
struct TerminalInfo {
  bool is_terminal = false;
  bool may_redraw = false;  // a terminal, TERM set and not "dumb"
  bool may_color = false;   // the same, NO_COLOR unset or empty
  int columns = 80;
  int rows = 24;
};
TerminalInfo DescribeTerminal(int fd);

/// `fraction` of `width` cells as a bar with eighths: "███▌····". Pure.
std::string DrawBar(double fraction, int width);

/// "loading ███▌···· 44 %  12.1 of 20.7 MB" in fewer than `columns` columns: first the bar and the
/// detail, then the label give way. `label` and `detail` are ASCII. Pure.
std::string ProgressLine(absl::string_view label, double fraction, absl::string_view detail,
                         int columns);

/// Columns that a UTF-8 text takes where each character takes one. Pure.
int DisplayWidth(absl::string_view text);

/// What of a frame has room on a terminal that redraws it from its top left: lines of at most
/// `columns`, cut with "…", and with `last` at most `rows` - 1 of them. Where lines do not fit, the
/// first that is left out says how many there are. Each line of `frame` ends with a newline; `last`
/// is one line without. Pure.
std::string FitTerminal(absl::string_view frame, absl::string_view last, int columns, int rows);

/// 5,210 or 412 or 8.13: as many digits as a rate needs. Pure; no locale.
std::string FormatRate(double value);
/// 1,234,567. Pure.
std::string FormatCount(int64_t value);
/// 20.7 MB (powers of 1,000 as storage is sold). Pure.
std::string FormatBytes(int64_t bytes);

/// The progress of one task on stderr: on a terminal a bar that is redrawn in place at most ten
/// times a second and wiped at the end, elsewhere one line every five seconds. A task that ends
/// within half a second shows nothing. Not thread-safe.
class Progress {
 public:
  /// `unit` is what is counted: "MB", "tokens". Quiet shows nothing.
  Progress(std::string label, bool quiet, const Clock& clock = Clock::Monotonic());
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `detail` follows the bar: "12.1 of 20.7 MB".
  void Update(int64_t done, int64_t total, absl::string_view detail);
  /// Wipes the bar.
  void End();

 private:
  const std::string label_;
  const bool quiet_;
  const Clock& clock_;
  const TerminalInfo terminal_;
  const absl::Duration start_;
  absl::Duration next_;
  bool drawn_ = false;
};

}  // namespace moebius
