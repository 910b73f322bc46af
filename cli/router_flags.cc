// SPDX-License-Identifier: Apache-2.0
#include "cli/router_flags.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/arguments.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/transport/address.h"
#include "moebius/transport/grpc/grpc_log.h"

namespace moebius {

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
                    "give --router HOST:PORT, or set MOEBIUS_ROUTER");
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
  if (flags.tls_ca.has_value() || flags.tls_cert.has_value() || flags.tls_key.has_value()) {
    options.tls = ClientTls{flags.tls_ca.value_or(""), flags.tls_cert.value_or(""),
                            flags.tls_key.value_or(""), ""};
  }
  return options;
}

}  // namespace moebius
