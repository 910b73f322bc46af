// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace moebius {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };
/// "debug", "info", "warning", "error"; "text", "json". False for any other text.
bool ParseLogLevel(absl::string_view text, LogLevel* level);
bool ParseLogFormat(absl::string_view text, LogFormat* format);

/// A fact beside the sentence: {"peer", name}, {"step", 12}. Names are those of the metrics and
/// protocol: request_id, step, layer, peer, … Values may be anybody's bytes: they are quoted.
struct LogField {
  LogField(absl::string_view name, absl::string_view text) : name(name), value(text) {}
  LogField(absl::string_view name, const char* text) : name(name), value(text) {}
  LogField(absl::string_view name, const std::string& text) : name(name), value(text) {}
  LogField(absl::string_view name, const absl::Status& status)
      : name(name), value(status.ToString()) {}
  template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
  LogField(absl::string_view name, T number) : name(name), value(Text(number)), is_bare(true) {}

  std::string name;
  std::string value;
  bool is_bare = false;  // a number or a truth value

 private:
  template <typename T>
  static std::string Text(T number) {
    if constexpr (std::is_same_v<T, bool>)
      return number ? "true" : "false";
    else
      return absl::StrCat(number);
  }
};

/// As one write to a pipe is kept whole: PIPE_BUF.
inline constexpr size_t kMaxLogLineBytes = 4096;

/// One line of a log, before it is formatted.
struct LogLine {
  LogLevel level = LogLevel::kInfo;
  absl::Time time;
  std::string sentence;
  std::vector<LogField> fields;
};

/// The line with its end, at most kMaxLogLineBytes: what does not fit is cut. Bytes that are not
/// printable ASCII or valid UTF-8, and quotes, are escaped. Pure.
///   text  2026-01-02T03:04:05.678Z warning expert-2: a peer is suspect peer="router" step=12
///   json  {"time":"2026-01-02T03:04:05.678Z","level":"warning","name":"expert-2",
///          "message":"a peer is suspect","peer":"router","step":12}        (on one line)
std::string FormatLogLine(const LogLine& line, absl::string_view name, LogFormat format);

}  // namespace moebius
