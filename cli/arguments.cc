// SPDX-License-Identifier: Apache-2.0
#include "cli/arguments.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{256} << 20;

absl::Status NotA(absl::string_view what, absl::string_view flag, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " needs ", what, ", not '", text, "'"));
}

template <typename T>
absl::StatusOr<T> ParseWhole(absl::string_view what, absl::string_view flag,
                             absl::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " is out of range: ", text));
  }
  if (error != std::errc() || stop != end || text.empty()) return NotA(what, flag, text);
  return value;
}

absl::StatusOr<std::vector<int64_t>> ParseIdsJson(absl::string_view text, const std::string& path) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, path, kMaxPromptBytes));
  std::vector<int64_t> ids;
  ids.reserve(json.elements().size());
  for (const Json& element : json.elements()) {
    if (element.kind() != Json::Kind::kInteger) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": element ", ids.size(),
                                                     " of the array is ", element.KindName(),
                                                     ", not an integer token id"));
    }
    ids.push_back(element.integer());
  }
  return ids;
}

absl::StatusOr<std::vector<int64_t>> ParseIdsText(absl::string_view text, char separator,
                                                  absl::string_view where) {
  std::vector<int64_t> ids;
  for (absl::string_view word :
       absl::StrSplit(text, separator == ',' ? absl::ByAnyChar(",") : absl::ByAnyChar(" \t\r\n"),
                      absl::SkipWhitespace())) {
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t id, ParseInteger(where, word));
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

absl::StatusOr<double> ParseNumber(absl::string_view flag, absl::string_view text) {
  MOEBIUS_ASSIGN_OR_RETURN(const double value, ParseWhole<double>("a number", flag, text));
  if (!std::isfinite(value)) return NotA("a finite number", flag, text);
  return value;
}

absl::StatusOr<int64_t> ParseInteger(absl::string_view flag, absl::string_view text) {
  return ParseWhole<int64_t>("an integer", flag, text);
}

absl::StatusOr<uint64_t> ParseUnsigned(absl::string_view flag, absl::string_view text) {
  return ParseWhole<uint64_t>("an integer from 0 to 2^64-1", flag, text);
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view flag, absl::string_view text) {
  absl::string_view digits = text;
  int shift = 0;
  if (!absl::ConsumeSuffix(&digits, "iB")) absl::ConsumeSuffix(&digits, "B");
  if (absl::ConsumeSuffix(&digits, "K")) {
    shift = 10;
  } else if (absl::ConsumeSuffix(&digits, "M")) {
    shift = 20;
  } else if (absl::ConsumeSuffix(&digits, "G")) {
    shift = 30;
  }
  const auto count = ParseWhole<int64_t>("a size", flag, digits);
  if (!count.ok()) return NotA("a size such as 512MiB or 4GiB", flag, text);
  if (*count < 1 || *count > (std::numeric_limits<int64_t>::max() >> shift)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " is out of range: ", text));
  }
  return *count << shift;
}

absl::StatusOr<std::string> ReadInput(const std::string& path, int64_t max_bytes) {
  std::unique_ptr<FILE, int (*)(FILE*)> opened(nullptr, &std::fclose);
  FILE* file = stdin;
  if (path != "-") {
    opened.reset(std::fopen(path.c_str(), "rb"));
    if (opened == nullptr) {
      return absl::NotFoundError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
    }
    file = opened.get();
  }
  std::string text;
  char chunk[1 << 16];
  while (true) {
    const size_t size = std::fread(chunk, 1, sizeof(chunk), file);
    text.append(chunk, size);
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is larger than the limit of ", max_bytes, " bytes"));
    }
    if (size < sizeof(chunk)) break;
  }
  if (std::ferror(file) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", path, ": ", errno == 0 ? "read error" : std::strerror(errno)));
  }
  return text;
}

absl::StatusOr<std::vector<int64_t>> ReadPromptIds(const std::string& value) {
  if (value.find_first_not_of("0123456789,") == std::string::npos) {
    return ParseIdsText(value, ',', "--prompt-ids");
  }
  absl::StatusOr<std::string> text = ReadInput(value, kMaxPromptBytes);
  if (!text.ok()) {
    return WithHint(text.status(),
                    "--prompt-ids takes a list such as 256,72,105, or a file with a JSON array or "
                    "with numbers separated by white space");
  }
  const absl::string_view trimmed = absl::StripAsciiWhitespace(*text);
  if (absl::StartsWith(trimmed, "[")) return ParseIdsJson(trimmed, value);
  return ParseIdsText(trimmed, ' ', absl::StrCat("every word of ", value));
}

std::string ShellQuote(const std::string& text) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out.push_back(c);
    }
  }
  out.push_back('\'');
  return out;
}

}  // namespace moebius
