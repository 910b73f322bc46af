// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "absl/time/time.h"

namespace moebius {

/// How much may be sent again because somebody is slow to answer rather than dead: 10 % of the rows
/// of the last ten seconds, or one dispatch, whichever is more. So a hiccup of many services at
/// once cannot double the load of the others. Time comes in as an argument and never steps back.
/// Not thread-safe.
class ResendBudget {
 public:
  void OnSent(absl::Duration now, int64_t rows) { BucketAt(now).sent += rows; }

  /// True, and the rows are taken from the budget, when they may be sent again now.
  bool TryTake(absl::Duration now, int64_t rows);

 private:
  static constexpr int64_t kSeconds = 10;
  static constexpr int64_t kRowsPerResentRow = 10;
  struct Bucket {
    int64_t second = -1;
    int64_t sent = 0;
    int64_t resent = 0;
  };
  Bucket& BucketAt(absl::Duration now);

  std::array<Bucket, kSeconds> buckets_;  // of one second each
};

}  // namespace moebius
