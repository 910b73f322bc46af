// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/http/http_message.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/civil_time.h"

namespace moebius {
namespace {

// The longest method that is worth waiting for: "OPTIONS ".
constexpr size_t kMaxMethodBytes = 8;
constexpr absl::string_view kDays[] = {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
constexpr absl::string_view kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

absl::string_view ReasonPhrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

HttpParse Reject(int code, absl::string_view message) {
  HttpParse parse;
  parse.rejected = HttpResponse{code, "text/plain; charset=utf-8", absl::StrCat(message, "\n")};
  return parse;
}

bool IsToken(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::StrContains("!#$%&'*+-.^_`|~", absl::string_view(&c, 1));
  });
}

bool IsPrintable(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

// TLS hellos, frames of other protocols and random bytes show themselves early.
bool MayBeginRequest(absl::string_view bytes) {
  const absl::string_view start = bytes.substr(0, kMaxMethodBytes);
  const absl::string_view method = start.substr(0, start.find(' '));
  return IsToken(method) && (method.size() < start.size() || start.size() < kMaxMethodBytes);
}

HttpParse ParseRequestLine(absl::string_view line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  if (parts.size() != 3 || !IsToken(parts[0])) return Reject(400, "not an HTTP/1.1 request line");
  if (!absl::StartsWith(parts[2], "HTTP/")) return Reject(400, "not an HTTP/1.1 request line");
  if (parts[2] != "HTTP/1.1" && parts[2] != "HTTP/1.0") return Reject(505, "speak HTTP/1.1");
  if (parts[0] != "GET" && parts[0] != "HEAD") return Reject(405, "only GET and HEAD are answered");
  absl::string_view target = parts[1];
  // The absolute form, which is meant for proxies, has to be understood too.
  if (absl::ConsumePrefix(&target, "http://")) {
    target.remove_prefix(std::min(target.find('/'), target.size()));
    if (target.empty()) target = "/";
  }
  if (!absl::StartsWith(target, "/") || !IsPrintable(target)) return Reject(400, "not a path");
  HttpParse parse;
  const size_t mark = std::min(target.find('?'), target.size());
  parse.request = HttpRequest{parts[0] == "HEAD", std::string(target.substr(0, mark)),
                              std::string(target.substr(std::min(mark + 1, target.size())))};
  return parse;
}

// Headers change nothing here, but what is no header is no HTTP.
bool IsHeader(absl::string_view line) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos || !IsToken(line.substr(0, colon))) return false;
  const absl::string_view value = line.substr(colon + 1);
  return std::none_of(value.begin(), value.end(), [](char c) {
    return c != '\t' && absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
}

}  // namespace

HttpParse ParseHttpRequest(absl::string_view bytes, size_t max_bytes) {
  if (bytes.empty()) return {};
  if (!MayBeginRequest(bytes)) return Reject(400, "not HTTP");
  const absl::string_view head = bytes.substr(0, max_bytes);
  const size_t end = head.find("\r\n\r\n");
  if (end == absl::string_view::npos) {
    if (bytes.size() < max_bytes) return {};
    return Reject(431, absl::StrCat("request line and headers exceed ", max_bytes, " bytes"));
  }
  const std::vector<absl::string_view> lines = absl::StrSplit(head.substr(0, end), "\r\n");
  for (size_t index = 1; index < lines.size(); ++index) {
    if (!IsHeader(lines[index])) return Reject(400, "not an HTTP header");
  }
  return ParseRequestLine(lines[0]);
}

std::string FormatHttpDate(absl::Time time) {
  const absl::CivilSecond civil = absl::ToCivilSecond(time, absl::UTCTimeZone());
  return absl::StrFormat("%s, %02d %s %04d %02d:%02d:%02d GMT",
                         kDays[static_cast<size_t>(absl::GetWeekday(civil))], civil.day(),
                         kMonths[static_cast<size_t>(civil.month() - 1)], civil.year(),
                         civil.hour(), civil.minute(), civil.second());
}

std::optional<absl::Time> ParseHttpDate(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
  if (parts.size() != 6 || parts[5] != "GMT") return std::nullopt;
  const auto month = std::find(std::begin(kMonths), std::end(kMonths), parts[2]);
  const std::vector<absl::string_view> clock = absl::StrSplit(parts[4], ':');
  int day = 0, year = 0, hour = 0, minute = 0, second = 0;
  if (month == std::end(kMonths) || clock.size() != 3 || !absl::SimpleAtoi(parts[1], &day) ||
      !absl::SimpleAtoi(parts[3], &year) || !absl::SimpleAtoi(clock[0], &hour) ||
      !absl::SimpleAtoi(clock[1], &minute) || !absl::SimpleAtoi(clock[2], &second)) {
    return std::nullopt;
  }
  const absl::CivilSecond civil(year, month - std::begin(kMonths) + 1, day, hour, minute, second);
  const absl::Time time = absl::FromCivil(civil, absl::UTCTimeZone());
  // Another weekday, a 31st of June or an hour 25 does not come back as it was.
  if (FormatHttpDate(time) != text) return std::nullopt;
  return time;
}

std::string FormatHttpResponse(const HttpResponse& response, bool head_only, absl::Time now) {
  return absl::StrCat("HTTP/1.1 ", response.code, " ", ReasonPhrase(response.code), "\r\n",
                      "Date: ", FormatHttpDate(now), "\r\n",
                      "Content-Type: ", response.content_type, "\r\n",
                      "Content-Length: ", response.body.size(), "\r\n",
                      response.code == 405 ? "Allow: GET, HEAD\r\n" : "",
                      "Cache-Control: no-store\r\n"
                      "X-Content-Type-Options: nosniff\r\n"
                      "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; "
                      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
                      "Connection: close\r\n\r\n",
                      head_only ? absl::string_view() : absl::string_view(response.body));
}

}  // namespace moebius
