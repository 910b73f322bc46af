// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shm_connections.h"

#include "absl/strings/str_cat.h"

namespace moebius {

ShmConnections::ShmConnections(uint32_t max_connections, uint32_t max_per_process)
    : max_connections_(max_connections),
      max_per_process_(max_per_process),
      counts_(std::make_shared<Counts>()) {}

absl::StatusOr<std::shared_ptr<void>> ShmConnections::Add(pid_t pid) {
  {
    MutexLock lock(counts_->mutex);
    if (counts_->open >= max_connections_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(max_connections_, " connections are open already"));
    }
    const auto found = counts_->by_process.find(pid);
    if (found != counts_->by_process.end() && found->second >= max_per_process_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(max_per_process_, " connections of this process are open already"));
    }
    ++counts_->open;
    if (pid != 0) ++counts_->by_process[pid];
  }
  return std::shared_ptr<void>(nullptr, [counts = counts_, pid](void*) {
    MutexLock lock(counts->mutex);
    --counts->open;
    const auto found = counts->by_process.find(pid);
    if (found != counts->by_process.end() && --found->second == 0) counts->by_process.erase(found);
  });
}

}  // namespace moebius
