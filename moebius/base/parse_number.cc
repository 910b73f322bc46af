// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/parse_number.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "moebius/base/status.h"

namespace moebius {
namespace {

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

}  // namespace moebius
