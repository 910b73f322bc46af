// SPDX-License-Identifier: Apache-2.0
#include "cli/arguments.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/file.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{256} << 20;

absl::StatusOr<std::vector<int64_t>> ParseIdsJson(absl::string_view text, const std::string& path) {
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, path, kMaxPromptBytes));
  std::vector<int64_t> ids;
  ids.reserve(json.elements().size());
  for (const Json& element : json.elements()) {
    if (element.kind() != Json::Kind::kInteger) {
      const bool is_large = element.kind() == Json::Kind::kLargeInteger;
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": element ", ids.size(), " of the array is ",
          is_large ? absl::StrCat(element.large_integer()) : element.KindName(),
          is_large ? ", which is no token id of any model" : ", not an integer token id"));
    }
    ids.push_back(element.integer());
  }
  return ids;
}

// Every comma stands between two ids: one left out must not move the rest unseen.
absl::StatusOr<std::vector<int64_t>> ParseIdsList(absl::string_view text) {
  std::vector<int64_t> ids;
  if (text.empty()) return ids;
  for (absl::string_view word : absl::StrSplit(text, ',')) {
    if (word.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--prompt-ids has no id at position ", ids.size(), " of its list"));
    }
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t id, ParseInteger("--prompt-ids", word));
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::vector<int64_t>> ParseIdsText(absl::string_view text, const std::string& path) {
  std::vector<int64_t> ids;
  for (absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipWhitespace())) {
    const absl::StatusOr<int64_t> id = ParseInteger(path, word);
    if (!id.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": word ", ids.size(), " is '",
                                                     PrintableName(word), "', not a token id"));
    }
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace

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
    return ParseIdsList(value);
  }
  absl::StatusOr<std::string> text = ReadInput(value, kMaxPromptBytes);
  if (!text.ok()) {
    return WithHint(text.status(),
                    "--prompt-ids takes a list such as 256,72,105, or a file with a JSON array or "
                    "with numbers separated by white space");
  }
  const absl::string_view trimmed = absl::StripAsciiWhitespace(*text);
  if (absl::StartsWith(trimmed, "[")) return ParseIdsJson(trimmed, value);
  return ParseIdsText(trimmed, value);
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
