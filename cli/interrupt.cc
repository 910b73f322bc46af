// SPDX-License-Identifier: Apache-2.0
#include "cli/interrupt.h"

#include <signal.h>

#include <atomic>

namespace moebius {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void OnSignal(int signal_number) {
  requested.store(true);
  signal(signal_number, SIG_DFL);
}

}  // namespace

InterruptScope::InterruptScope() {
  requested.store(false);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

InterruptScope::~InterruptScope() {
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
}

bool InterruptScope::Requested() { return requested.load(); }

}  // namespace moebius
