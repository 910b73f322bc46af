// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr size_t kMaxHostBytes = 255;

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return WithHint(absl::InvalidArgumentError(absl::StrCat("address '", text, "': ", why)),
                  "write name:port, 10.0.0.1:port or [address]:port");
}

// The address without its zone.
std::string WithoutZone(absl::string_view host) {
  return std::string(host.substr(0, host.find('%')));
}

bool ParseIpv6(absl::string_view host, in6_addr* out) {
  const size_t zone = host.find('%');
  if (zone != absl::string_view::npos && zone + 1 == host.size()) return false;
  return inet_pton(AF_INET6, WithoutZone(host).c_str(), out) == 1;
}

bool ParseIpv4(absl::string_view host, in_addr* out) {
  return inet_pton(AF_INET, std::string(host).c_str(), out) == 1;
}

bool IsName(absl::string_view host) {
  bool has_letter = false;
  for (const char c : host) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.' && c != '_') {
      return false;
    }
    has_letter |= absl::ascii_isalpha(static_cast<unsigned char>(c)) != 0;
  }
  // All digits and dots is a mistyped IPv4 address, not a name.
  return has_letter && host.front() != '.' && host.front() != '-';
}

absl::StatusOr<uint16_t> ParsePort(absl::string_view text, absl::string_view port) {
  uint32_t value = 0;
  bool digits = !port.empty() && port.size() <= 5;
  for (const char c : port) {
    digits = digits && absl::ascii_isdigit(static_cast<unsigned char>(c)) != 0;
  }
  if (!digits || !absl::SimpleAtoi(port, &value) || value > 65535) {
    return Refuse(text, absl::StrCat("'", port, "' is no port in [0, 65535]"));
  }
  return static_cast<uint16_t>(value);
}

}  // namespace

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  Address address;
  absl::string_view port;
  if (absl::StartsWith(text, "[")) {
    const size_t end = text.find(']');
    if (end == absl::string_view::npos) return Refuse(text, "']' is missing");
    address.host = std::string(text.substr(1, end - 1));
    in6_addr parsed;
    if (!ParseIpv6(address.host, &parsed)) return Refuse(text, "no IPv6 address in the brackets");
    if (!absl::StartsWith(text.substr(end + 1), ":")) return Refuse(text, "the port is missing");
    port = text.substr(end + 2);
  } else {
    const size_t colon = text.rfind(':');
    if (colon == absl::string_view::npos) return Refuse(text, "the port is missing");
    if (absl::StrContains(text, "://")) return Refuse(text, "it is a URL");
    if (absl::StrContains(text, ',')) return Refuse(text, "it is more than one");
    if (text.find(':') != colon) return Refuse(text, "an IPv6 address needs brackets");
    address.host = std::string(text.substr(0, colon));
    port = text.substr(colon + 1);
    in_addr parsed;
    if (address.host.empty()) return Refuse(text, "the host is missing");
    if (address.host.size() > kMaxHostBytes) return Refuse(text, "the host is too long");
    if (!ParseIpv4(address.host, &parsed) && !IsName(address.host)) {
      return Refuse(text, "the host is neither an address nor a name");
    }
  }
  MOEBIUS_ASSIGN_OR_RETURN(address.port, ParsePort(text, port));
  return address;
}

std::string FormatAddress(const Address& address) {
  return IsIpv6(address) ? absl::StrCat("[", address.host, "]:", address.port)
                         : absl::StrCat(address.host, ":", address.port);
}

bool IsIpv6(const Address& address) { return absl::StrContains(address.host, ':'); }

bool IsUnspecified(const Address& address) {
  in6_addr v6;
  in_addr v4;
  if (ParseIpv6(address.host, &v6)) {
    // ::ffff:0.0.0.0 is the IPv4 one in IPv6's clothes.
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr32[3] == 0;
    return IN6_IS_ADDR_UNSPECIFIED(&v6) || mapped;
  }
  return ParseIpv4(address.host, &v4) && v4.s_addr == 0;
}

bool IsLoopback(const Address& address) {
  in6_addr v6;
  in_addr v4;
  if (ParseIpv6(address.host, &v6)) return IN6_IS_ADDR_LOOPBACK(&v6);
  if (ParseIpv4(address.host, &v4)) return (ntohl(v4.s_addr) >> 24) == 127;
  return absl::EqualsIgnoreCase(address.host, "localhost");
}

absl::string_view DescribeExposure(Exposure exposure) {
  switch (exposure) {
    case Exposure::kTls:
      return "mutual TLS";
    case Exposure::kInsecureAllowed:
      return "anybody on the network, without TLS";
    case Exposure::kLoopbackOnly:
      return "this host only, without TLS";
  }
  return "";
}

absl::Status ValidateListenAddress(const Address& listen, Exposure exposure) {
  if (exposure != Exposure::kLoopbackOnly || IsLoopback(listen)) return absl::OkStatus();
  return WithHint(
      absl::PermissionDeniedError(absl::StrCat("listening on ", FormatAddress(listen),
                                               " would let anybody on the network in")),
      "configure TLS (--tls-cert, --tls-key, --tls-ca), listen on 127.0.0.1, or pass --insecure");
}

absl::StatusOr<Address> AdvertisedAddress(const Address& listen, const Address& advertise) {
  Address address = advertise.host.empty() ? listen : advertise;
  if (address.port == 0) address.port = listen.port;
  if (IsUnspecified(address) || address.port == 0) {
    return WithHint(absl::InvalidArgumentError(absl::StrCat(
                        FormatAddress(address), " is no address that others can connect to")),
                    "pass --advertise with a name or address of this host");
  }
  return address;
}

}  // namespace moebius
