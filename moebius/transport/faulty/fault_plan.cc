// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/faulty/fault_plan.h"

namespace moebius {

void FaultPlan::Set(const LinkFaults& faults) {
  MutexLock lock(mutex_);
  all_ = faults;
}

void FaultPlan::SetForPort(uint16_t port, const LinkFaults& faults) {
  MutexLock lock(mutex_);
  by_port_[port] = faults;
}

void FaultPlan::Clear() {
  MutexLock lock(mutex_);
  all_ = LinkFaults();
  by_port_.clear();
}

LinkFaults FaultPlan::FaultsOf(uint16_t port) const {
  MutexLock lock(mutex_);
  const auto found = by_port_.find(port);
  return found == by_port_.end() ? all_ : found->second;
}

}  // namespace moebius
