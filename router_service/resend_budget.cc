// SPDX-License-Identifier: Apache-2.0
#include "router_service/resend_budget.h"

namespace moebius {

ResendBudget::Bucket& ResendBudget::BucketAt(absl::Duration now) {
  const int64_t second = absl::ToInt64Seconds(now);
  Bucket& bucket = buckets_[static_cast<size_t>(second % kSeconds)];
  if (bucket.second != second) bucket = Bucket{second, 0, 0};
  return bucket;
}

bool ResendBudget::TryTake(absl::Duration now, int64_t rows) {
  Bucket& bucket = BucketAt(now);
  int64_t sent = 0, resent = 0;
  for (const Bucket& each : buckets_) {
    if (each.second < 0 || each.second <= bucket.second - kSeconds) continue;
    sent += each.sent;
    resent += each.resent;
  }
  if (resent > 0 && (resent + rows) * kRowsPerResentRow > sent) return false;
  bucket.resent += rows;
  return true;
}

}  // namespace moebius
