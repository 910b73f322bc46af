// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "attention_service/kv_exchange.h"
#include "moebius/attention/session_spans.h"
#include "moebius/base/mutex.h"

namespace moebius::testing {

/// The exchange of N ranks in one process, each run by a thread of its own: an Await calls the
/// other rank's holder as soon as that has published the layer. Nothing is prefetched.
class LocalExchangeGroup {
 public:
  LocalExchangeGroup(int32_t num_ranks, const SpanGeometry& geometry, int64_t num_heads);
  ~LocalExchangeGroup();
  KvExchange& rank(int32_t rank);
  /// Waits for `rank` end with this.
  void Fail(int32_t rank, const absl::Status& status);

 private:
  class Rank;
  const SpanGeometry geometry_;
  const int64_t num_heads_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace moebius::testing
