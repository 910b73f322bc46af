// SPDX-License-Identifier: Apache-2.0
#include "cli/listen_check.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/transport/grpc/listen_socket.h"

namespace moebius {
namespace {

constexpr size_t kMaxAddresses = 64;

}  // namespace

absl::StatusOr<std::vector<Address>> ParseListenAddresses(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ',');
  if (parts.size() > kMaxAddresses) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen has ", parts.size(), " addresses, more than ", kMaxAddresses));
  }
  std::vector<Address> addresses;
  for (const absl::string_view part : parts) {
    const absl::StatusOr<Address> address = ParseAddress(part);
    if (!address.ok()) return WithContext(address.status(), "--listen");
    addresses.push_back(*address);
  }
  return addresses;
}

DoctorCheck CheckListenAddresses(absl::Span<const Address> addresses) {
  DoctorCheck check{"addresses", CheckState::kOk, "", ""};
  std::vector<std::string> faults;
  const auto add = [&](std::string fault, const std::string& hint) {
    faults.push_back(std::move(fault));
    if (check.hint.empty()) check.hint = hint;
  };
  // Held until the end: two of the list may be in each other's way.
  std::vector<ListenSockets> held;
  for (const Address& address : addresses) {
    absl::StatusOr<ListenSockets> sockets = OpenListenSockets(address);
    if (!sockets.ok() && !held.empty()) {
      held.clear();
      if (OpenListenSockets(address).ok()) {
        add(absl::StrCat(FormatAddress(address), " is also another one's of these"),
            "give each a port of its own");
        continue;
      }
    }
    if (sockets.ok()) {
      held.push_back(*std::move(sockets));
    } else {
      add(std::string(sockets.status().message()), HintOf(sockets.status()));
    }
  }
  if (faults.empty()) {
    check.detail = absl::StrCat(absl::StrJoin(addresses, ", ",
                                              [](std::string* out, const Address& address) {
                                                absl::StrAppend(out, FormatAddress(address));
                                              }),
                                addresses.size() == 1 ? " is free" : " are free");
    return check;
  }
  check.state = CheckState::kFault;
  check.detail = absl::StrJoin(faults, "; ");
  return check;
}

}  // namespace moebius
