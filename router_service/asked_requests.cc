// SPDX-License-Identifier: Apache-2.0
#include "router_service/asked_requests.h"

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"

namespace moebius {

absl::StatusOr<std::shared_ptr<GenerateStream>> AskedRequests::Follow(
    const std::string& request_id, const GenerateRequest& request) const {
  const auto found = asked_.find(request_id);
  if (found == asked_.end()) return std::shared_ptr<GenerateStream>();
  const std::string name = absl::StrCat("request_id '", request_id, "' is running");
  if (!AsksTheSame(found->second.request, request)) {
    return WithHint(absl::AlreadyExistsError(absl::StrCat(name, " and asks otherwise")),
                    "a new request needs a new id");
  }
  const std::shared_ptr<GenerateStream> stream = found->second.stream.lock();
  std::shared_ptr<GenerateStream> follower = stream == nullptr ? nullptr : stream->Follow();
  if (follower != nullptr) return follower;
  return WithHint(absl::AlreadyExistsError(absl::StrCat(
                      name, ", and is too near its end, too long or read by too many to follow")),
                  absl::StrCat("how it goes: moebius explain ", request_id));
}

}  // namespace moebius
