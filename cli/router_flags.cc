// SPDX-License-Identifier: Apache-2.0
#include "cli/router_flags.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/arguments.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/config_parser.h"
#include "moebius/transport/address.h"
#include "moebius/transport/grpc/grpc_log.h"

namespace moebius {
namespace {

constexpr size_t kMaxKeyFile = 4096;

// Of a file or of the environment, without the white space around it; never of a flag, which every
// process of the host can read.
absl::StatusOr<std::string> ReadApiKey(const RouterCallFlags& flags) {
  if (!flags.api_key_file.has_value()) {
    const char* key = std::getenv("MOEBIUS_API_KEY");
    return key == nullptr ? "" : std::string(absl::StripAsciiWhitespace(key));
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(*flags.api_key_file, kMaxKeyFile));
  const std::string key(absl::StripAsciiWhitespace(text));
  if (!key.empty()) return key;
  return absl::InvalidArgumentError(
      absl::StrCat("--api-key-file ", *flags.api_key_file, " has no key"));
}

}  // namespace

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view flag, absl::string_view text) {
  size_t digits = 0;
  while (digits < text.size() && (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) {
    ++digits;
  }
  const absl::string_view unit = text.substr(digits);
  const absl::Duration factor = unit.empty() || unit == "s" ? absl::Seconds(1)
                                : unit == "ms"              ? absl::Milliseconds(1)
                                : unit == "m"               ? absl::Minutes(1)
                                : unit == "h"               ? absl::Hours(1)
                                                            : absl::ZeroDuration();
  const auto value = ParseNumber(flag, text.substr(0, digits));
  if (!value.ok() || factor == absl::ZeroDuration() || *value <= 0 || *value > 1e9) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " needs a time such as 30s, 200ms or 5m, not '", text, "'"));
  }
  return *value * factor;
}

absl::StatusOr<ClientOptions> ParseRouterFlags(const RouterCallFlags& flags) {
  if (!flags.router.has_value()) {
    return WithHint(absl::InvalidArgumentError("there is no router to ask"),
                    "give --router HOST:PORT; moebius serve prints it");
  }
  return ParseCallFlags("--router", *flags.router, flags);
}

absl::StatusOr<ClientOptions> ParseCallFlags(absl::string_view flag, const std::string& text,
                                             const RouterCallFlags& flags) {
  ClientOptions options;
  const absl::StatusOr<Address> address = ParseAddress(text);
  if (!address.ok()) return WithContext(address.status(), flag);
  options.target = FormatAddress(*address);
  // What gRPC says of a connection that fails is in the call's status too.
  InstallGrpcLog([](const std::string&) {});
  if (flags.timeout.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(options.timeout, ParseTimeout("--call-timeout", *flags.timeout));
  }
  MOEBIUS_ASSIGN_OR_RETURN(options.api_key, ReadApiKey(flags));
  if (flags.tls_ca.has_value() || flags.tls_cert.has_value() || flags.tls_key.has_value()) {
    options.tls = ClientTls{flags.tls_ca.value_or(""), flags.tls_cert.value_or(""),
                            flags.tls_key.value_or(""), ""};
  }
  return options;
}

}  // namespace moebius
