// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace moebius {
namespace {

constexpr absl::Duration kFirstDraw = absl::Milliseconds(500);
constexpr absl::Duration kRedraw = absl::Milliseconds(100);
constexpr absl::Duration kLine = absl::Seconds(5);
constexpr int kLeastBar = 5;
constexpr int kMostBar = 40;

// The first `columns` columns of a line, the last of them "…" where it was longer.
std::string ClipLine(absl::string_view line, int columns) {
  if (DisplayWidth(line) <= columns) return std::string(line);
  size_t end = 0;
  for (int taken = 0; taken < columns - 1; ++taken) {
    ++end;
    while ((static_cast<unsigned char>(line[end]) & 0xC0) == 0x80) ++end;
  }
  return absl::StrCat(line.substr(0, end), "…");
}

}  // namespace

TerminalInfo DescribeTerminal(int fd) {
  TerminalInfo info;
  info.is_terminal = isatty(fd) == 1;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  info.may_redraw = info.is_terminal && term != nullptr && std::strcmp(term, "dumb") != 0;
  info.may_color = info.may_redraw && (no_color == nullptr || *no_color == '\0');
  winsize size = {};
  if (info.is_terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    info.columns = size.ws_col;
    if (size.ws_row > 0) info.rows = size.ws_row;
  }
  return info;
}

std::string DrawBar(double fraction, int width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double clamped = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0.0;
  const int eighths = static_cast<int>(clamped * width * 8);
  std::string out;
  for (int cell = 0; cell < eighths / 8; ++cell) out += "█";
  int drawn = eighths / 8;
  if (eighths % 8 != 0) {
    out += kEighths[eighths % 8];
    ++drawn;
  }
  for (; drawn < width; ++drawn) out += "·";
  return out;
}

int DisplayWidth(absl::string_view text) {
  int width = 0;
  for (const char c : text) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    if (!continues) ++width;
  }
  return width;
}

std::string FitTerminal(absl::string_view frame, absl::string_view last, int columns, int rows) {
  std::vector<std::string> lines = absl::StrSplit(absl::StripSuffix(frame, "\n"), '\n');
  const size_t room = static_cast<size_t>(std::max(rows - 2, 1));  // beside `last` and the cursor
  if (lines.size() > room) {
    const size_t left_out = lines.size() - (room - 1);
    lines.resize(room);
    lines.back() = absl::StrCat("… ", left_out, " more lines");
  }
  lines.emplace_back(last);
  std::string out;
  for (const std::string& line : lines) {
    absl::StrAppend(&out, ClipLine(line, std::max(columns, 1)), "\n");
  }
  return out;
}

std::string FormatCount(int64_t value) {
  std::string digits = absl::StrCat(value < 0 ? -value : value);
  for (int position = static_cast<int>(digits.size()) - 3; position > 0; position -= 3) {
    digits.insert(static_cast<size_t>(position), ",");
  }
  return value < 0 ? absl::StrCat("-", digits) : digits;
}

std::string FormatRate(double value) {
  if (!std::isfinite(value)) return "–";
  if (value >= 100) return FormatCount(static_cast<int64_t>(value + 0.5));
  return value >= 10 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.2f", value);
}

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string ProgressLine(absl::string_view label, double fraction, absl::string_view detail,
                         int columns) {
  const double clamped = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0.0;
  const std::string percent = absl::StrFormat("%3d %%", static_cast<int>(clamped * 100));
  // The last column stays free: a full line would wrap, and no carriage return comes back over it.
  const int room = columns - 1;
  const int used = static_cast<int>(label.size() + detail.size()) + 9;
  if (room - used >= kLeastBar) {
    return absl::StrCat(label, " ", DrawBar(fraction, std::min(room - used, kMostBar)), " ",
                        percent, "  ", detail);
  }
  std::string brief = absl::StrCat(label, " ", percent);
  if (static_cast<int>(brief.size()) <= room) return brief;
  return percent.substr(0, static_cast<size_t>(std::max(room, 0)));
}

Progress::Progress(std::string label, bool quiet, const Clock& clock)
    : label_(std::move(label)),
      quiet_(quiet),
      clock_(clock),
      terminal_(DescribeTerminal(STDERR_FILENO)),
      start_(clock.Now()),
      next_(start_ + (terminal_.may_redraw ? kFirstDraw : kLine)) {}

Progress::~Progress() { End(); }

void Progress::Update(int64_t done, int64_t total, absl::string_view detail) {
  const absl::Duration now = clock_.Now();
  if (quiet_ || now < next_ || total <= 0) return;
  const double fraction = static_cast<double>(done) / static_cast<double>(total);
  if (!terminal_.may_redraw) {
    next_ = now + kLine;
    std::fprintf(stderr, "%s: %d %%, %s\n", label_.c_str(), static_cast<int>(fraction * 100),
                 std::string(detail).c_str());
    return;
  }
  next_ = now + kRedraw;
  std::fprintf(stderr, "\r\x1b[K%s",
               ProgressLine(label_, fraction, detail, terminal_.columns).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::End() {
  if (!drawn_) return;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
  drawn_ = false;
}

}  // namespace moebius
