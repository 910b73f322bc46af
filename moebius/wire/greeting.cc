// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/greeting.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/transport/frame/byte_codec.h"

namespace moebius {
namespace {

constexpr uint8_t kGreetingLayout = 1;

absl::Status CheckText(absl::string_view field, const std::string& text) {
  for (const char c : text) {
    if (c < 0x20 || c > 0x7e) {
      return absl::InvalidArgumentError(absl::StrCat("greeting: ", field, " is not printable"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTexts(const Greeting& greeting) {
  MOEBIUS_RETURN_IF_ERROR(CheckText("config hash", greeting.config_hash));
  MOEBIUS_RETURN_IF_ERROR(CheckText("model hash", greeting.model_hash));
  MOEBIUS_RETURN_IF_ERROR(CheckText("numeric class", greeting.numeric_class));
  MOEBIUS_RETURN_IF_ERROR(CheckText("tier", greeting.tier));
  MOEBIUS_RETURN_IF_ERROR(CheckText("version", greeting.version));
  MOEBIUS_RETURN_IF_ERROR(CheckText("data address", greeting.data_address));
  MOEBIUS_RETURN_IF_ERROR(CheckText("admin address", greeting.admin_address));
  return CheckText("HTTP address", greeting.http_address);
}

}  // namespace

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kRouter:
      return "router";
    case Role::kExpert:
      return "expert";
    case Role::kAttention:
      return "attention";
  }
  return "unknown role";
}

std::string EncodeGreeting(const Greeting& greeting) {
  ByteWriter out;
  const auto write = [&out](absl::string_view text, size_t max_bytes) {
    out.WriteText(text.substr(0, max_bytes));
  };
  out.Write(kGreetingLayout);
  out.Write(static_cast<uint8_t>(greeting.role));
  out.Write(greeting.wanted_index);
  out.Write(greeting.pid);
  write(greeting.config_hash, kMaxGreetingText);
  write(greeting.model_hash, kMaxGreetingText);
  write(greeting.numeric_class, kMaxGreetingText);
  write(greeting.tier, kMaxGreetingText);
  write(greeting.version, kMaxGreetingText);
  write(greeting.data_address, kMaxGreetingAddress);
  write(greeting.admin_address, kMaxGreetingAddress);
  write(greeting.http_address, kMaxGreetingAddress);
  const SharedBytes bytes = out.Share();
  return std::string(bytes.view());
}

absl::StatusOr<Greeting> ParseGreeting(absl::string_view bytes) {
  ByteReader in(absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
  Greeting greeting;
  const uint8_t layout = in.Read<uint8_t>();
  const uint8_t role = in.Read<uint8_t>();
  greeting.wanted_index = in.Read<int32_t>();
  greeting.pid = in.Read<uint64_t>();
  greeting.config_hash = in.ReadText(kMaxGreetingText);
  greeting.model_hash = in.ReadText(kMaxGreetingText);
  greeting.numeric_class = in.ReadText(kMaxGreetingText);
  greeting.tier = in.ReadText(kMaxGreetingText);
  greeting.version = in.ReadText(kMaxGreetingText);
  greeting.data_address = in.ReadText(kMaxGreetingAddress);
  greeting.admin_address = in.ReadText(kMaxGreetingAddress);
  greeting.http_address = in.ReadText(kMaxGreetingAddress);
  if (layout != kGreetingLayout) {
    return absl::InvalidArgumentError(absl::StrCat("greeting: layout ", int{layout},
                                                   ", this program speaks ", int{kGreetingLayout}));
  }
  if (!in.is_complete() || in.remaining() != 0) {
    return absl::InvalidArgumentError("greeting: its length is not its content's");
  }
  if (role < static_cast<uint8_t>(Role::kRouter) || role > static_cast<uint8_t>(Role::kAttention)) {
    return absl::InvalidArgumentError(absl::StrCat("greeting: ", int{role}, " is no role"));
  }
  greeting.role = static_cast<Role>(role);
  if (greeting.wanted_index < -1 || greeting.wanted_index >= kMaxSlotIndex) {
    return absl::InvalidArgumentError(absl::StrCat("greeting: wanted index ", greeting.wanted_index,
                                                   ", not in [-1, ", kMaxSlotIndex, ")"));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckTexts(greeting));
  return greeting;
}

absl::Status CheckGreeting(const Greeting& own, const Greeting& other,
                           absl::Span<const NearConfig> near) {
  const absl::string_view mine = RoleName(own.role);
  const absl::string_view theirs = RoleName(other.role);
  const auto refuse = [&](absl::string_view what, const std::string& my_value,
                          const std::string& their_value) {
    return WithHint(
        absl::FailedPreconditionError(absl::StrCat(what, " differs: the ", mine, " has ", my_value,
                                                   ", the ", theirs, " has ", their_value)),
        own.model_hash == other.model_hash
            ? "same model, other settings: give both the same --span, --group-fill, "
              "--attention-sum, --attention-layout and --dtype"
            : "give every process the same model folder");
  };
  if (own.config_hash != other.config_hash) {
    absl::Status status = refuse("the configuration", own.config_hash, other.config_hash);
    const auto found = std::find_if(near.begin(), near.end(), [&](const NearConfig& config) {
      return config.config_hash == other.config_hash;
    });
    if (found == near.end()) return status;
    // The router's settings are the cluster's.
    const bool is_router = own.role == Role::kRouter;
    return WithHint(absl::FailedPreconditionError(absl::StrCat(status.message(), "; the ", mine,
                                                               " ", found->own.does, ", the ",
                                                               theirs, " ", found->other.does)),
                    absl::StrCat("start the ", is_router ? theirs : mine, " with ",
                                 is_router ? found->own.flags : found->other.flags));
  }
  if (own.numeric_class != other.numeric_class) {
    return refuse("the numeric class", own.numeric_class, other.numeric_class);
  }
  return absl::OkStatus();
}

}  // namespace moebius
