// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/log_line.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"

namespace moebius {
namespace {

constexpr absl::string_view kLevelNames[] = {"debug", "info", "warning", "error"};
constexpr absl::string_view kFormatNames[] = {"text", "json"};
// A value's share of the line, with its escapes: the name, the sentence and a field always fit.
constexpr size_t kMaxValueBytes = 1024;
constexpr size_t kMaxEscapeBytes = 6;
constexpr absl::string_view kCut = "...";

// Bytes of the well-formed UTF-8 sequence that `text` begins with (RFC 3629), or 0.
size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xC2 ? 0
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF5 ? 4
                                      : 0;
  if (length == 0 || length > text.size()) return 0;
  for (size_t index = 1; index < length; ++index) {
    if ((byte(index) & 0xC0) != 0x80) return 0;
  }
  if (length < 3) return length;
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) > 0x9F;
  const bool beyond = lead == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

// Adds `text` as the inside of a JSON string; text logs quote the same way.
void AppendEscaped(absl::string_view text, std::string* out) {
  const size_t end = out->size() + kMaxValueBytes - kMaxEscapeBytes - kCut.size();
  while (!text.empty() && out->size() <= end) {
    const size_t length = Utf8Length(text);
    const unsigned char c = static_cast<unsigned char>(text[0]);
    if (length == 0) {
      out->append("\\ufffd");
    } else if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(text[0]);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c < 0x20 || c == 0x7F) {
      absl::StrAppendFormat(out, "\\u%04x", c);
    } else {
      out->append(text.data(), length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  if (!text.empty()) out->append(kCut.data(), kCut.size());
}

void AppendQuoted(absl::string_view text, std::string* out) {
  out->push_back('"');
  AppendEscaped(text, out);
  out->push_back('"');
}

void AppendValue(const LogField& field, std::string* out) {
  // Infinity and NaN are no JSON numbers.
  const bool is_word = field.is_bare && (field.value == "inf" || field.value == "-inf" ||
                                         field.value == "nan" || field.value == "-nan");
  if (field.is_bare && !is_word) {
    out->append(field.value);
  } else {
    AppendQuoted(field.value, out);
  }
}

template <typename Names, typename Value>
bool ParseName(absl::string_view text, const Names& names, Value* value) {
  const auto found = std::find(std::begin(names), std::end(names), text);
  if (found == std::end(names)) return false;
  *value = static_cast<Value>(found - std::begin(names));
  return true;
}

}  // namespace

bool ParseLogLevel(absl::string_view text, LogLevel* level) {
  return ParseName(text, kLevelNames, level);
}
bool ParseLogFormat(absl::string_view text, LogFormat* format) {
  return ParseName(text, kFormatNames, format);
}

std::string FormatLogLine(const LogLine& line, absl::string_view name, LogFormat format) {
  const bool json = format == LogFormat::kJson;
  const std::string time = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", line.time, absl::UTCTimeZone());
  const absl::string_view level = kLevelNames[static_cast<size_t>(line.level)];
  std::string out;
  if (json) {
    absl::StrAppend(&out, "{\"time\":\"", time, "\",\"level\":\"", level, "\",\"name\":");
    AppendQuoted(name, &out);
    out.append(",\"message\":");
    AppendQuoted(line.sentence, &out);
  } else {
    absl::StrAppend(&out, time, " ", level, " ");
    AppendEscaped(name, &out);
    out.append(": ");
    AppendEscaped(line.sentence, &out);
  }
  const absl::string_view end = json ? "}\n" : "\n";
  const absl::string_view cut = json ? ",\"cut\":true" : " cut=true";
  for (const LogField& field : line.fields) {
    std::string part;
    if (json) {
      part.push_back(',');
      AppendQuoted(field.name, &part);
      part.push_back(':');
    } else {
      absl::StrAppend(&part, " ", field.name, "=");
    }
    AppendValue(field, &part);
    // Whole fields are left out, so that what is left is still a line.
    if (out.size() + part.size() + cut.size() + end.size() > kMaxLogLineBytes) {
      absl::StrAppend(&out, cut);
      break;
    }
    out.append(part);
  }
  absl::StrAppend(&out, end);
  return out;
}

}  // namespace moebius
