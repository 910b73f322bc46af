// SPDX-License-Identifier: Apache-2.0
#include "moebius/placement/placement_change.h"

#include <algorithm>
#include <iterator>

#include "moebius/base/check.h"

namespace moebius {

std::vector<ServiceChange> DiffHeld(absl::Span<const std::vector<HeldExpert>> before,
                                    absl::Span<const std::vector<HeldExpert>> after) {
  MOEBIUS_CHECK_EQ(before.size(), after.size());
  std::vector<ServiceChange> changes(before.size());
  for (size_t service = 0; service < before.size(); ++service) {
    const std::vector<HeldExpert>& had = before[service];
    const std::vector<HeldExpert>& has = after[service];
    ServiceChange& change = changes[service];
    change.held_before = static_cast<int64_t>(had.size());
    change.held_after = static_cast<int64_t>(has.size());
    std::set_difference(has.begin(), has.end(), had.begin(), had.end(),
                        std::back_inserter(change.loads));
    std::set_difference(had.begin(), had.end(), has.begin(), has.end(),
                        std::back_inserter(change.unloads));
  }
  return changes;
}

}  // namespace moebius
