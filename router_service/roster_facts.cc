// SPDX-License-Identifier: Apache-2.0
#include "router_service/roster_facts.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

ServiceState DescribeMember(const Member& member) {
  const Slot& slot = member.slot;
  return {slot.name.empty() ? absl::StrCat(RoleName(member.role), "-", member.index) : slot.name,
          std::string(RoleName(member.role)),
          slot.suspect ? "suspect" : std::string(SlotStateName(slot.state)),
          slot.data_address.empty() ? slot.admin_address : slot.data_address,
          WhyNotUsable(slot),
          slot.http_address};
}

}  // namespace

RosterFacts DescribeRoster(const Roster& roster, const OwnService& own, Epoch epoch,
                           std::vector<std::string> missing) {
  RosterFacts facts;
  facts.epoch = epoch.value();
  facts.missing = std::move(missing);
  facts.services.push_back({own.name, std::string(RoleName(Role::kRouter)),
                            facts.missing.empty() ? "usable" : "waiting", own.data_address, "",
                            own.http_address});
  for (const Member& member : roster.members()) facts.services.push_back(DescribeMember(member));
  return facts;
}

}  // namespace moebius
