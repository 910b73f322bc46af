// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "attention_service/kv_exchange.h"
#include "moebius/attention/span.h"

namespace moebius {

/// The exchange of N ranks in one process, each run by a thread of its own: an Await calls the
/// other rank's holder as soon as that has published the layer. Nothing is fetched ahead, and
/// nothing but the answers themselves is allocated once a step as large has run.
///
/// The ranks are thread-safe among each other; each one's calls come from one thread. Pipelines
/// that use them are destroyed before it.
class LocalExchange {
 public:
  LocalExchange(int32_t num_ranks, const SpanGeometry& geometry, int64_t num_heads);
  ~LocalExchange();
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;

  KvExchange& rank(int32_t rank);
  /// Waits for `rank` end with this, now and from now on.
  void Fail(int32_t rank, const absl::Status& status);

 private:
  class Rank;
  const SpanGeometry geometry_;
  const int64_t num_heads_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace moebius
