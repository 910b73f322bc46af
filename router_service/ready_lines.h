// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

#include "moebius/service/run.h"

namespace moebius {

/// What a router announces on its way to readiness, for whoever started it. Of one thread.
class ReadyLines {
 public:
  /// `notices` outlives it.
  ReadyLines(std::string name, ProcessNotices& notices);

  /// "waiting role=router … why=WORDS", unless that was the last line.
  void Waiting(const std::string& why);
  /// "ready role=router … loaded_bytes=N seconds=S".
  void Ready(int64_t loaded_bytes, absl::Duration since_begin);

 private:
  const std::string name_;
  ProcessNotices& notices_;
  std::string why_;  // of the last line; empty after "ready"
};

}  // namespace moebius
