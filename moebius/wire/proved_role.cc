// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/proved_role.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "moebius/base/error.h"

namespace moebius {
namespace {

constexpr absl::string_view kRoleUri = "spiffe://moebius/";
constexpr size_t kMaxShownBytes = 64;

std::string WithArticle(absl::string_view role) {
  const bool is_vowel = !role.empty() && absl::StrContains("aeiou", role[0]);
  return absl::StrCat(is_vowel ? "an " : "a ", role.substr(0, kMaxShownBytes));
}

}  // namespace

absl::Status CheckProvedRole(absl::string_view identity, Role role) {
  absl::string_view proved = identity;
  if (!absl::ConsumePrefix(&proved, kRoleUri) || proved == RoleName(role)) return absl::OkStatus();
  return WithHint(absl::PermissionDeniedError(
                      absl::StrCat("its certificate is for ", WithArticle(proved),
                                   ", it says that it is ", WithArticle(RoleName(role)))),
                  absl::StrCat("give it the certificate of ", kRoleUri, RoleName(role)));
}

}  // namespace moebius
