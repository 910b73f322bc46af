// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "attention_service/kv_cache.h"
#include "attention_service/kv_exchange.h"
#include "attention_service/kv_layout.h"
#include "attention_service/packed_attention.h"
#include "attention_service/span_compute.h"
#include "moebius/attention/shard.h"
#include "moebius/transport/frame/buffer_pool.h"

namespace moebius {

class HeadSum;

/// Which spans of a session a rank computes states over: of `spans` the owned ones.
struct OwnSpans {
  Shard shard;
  SpanRange spans;
};

/// Tasks for the states of `rows`, which all see from spans.begin, over own spans: each run of them
/// apart, stored at the span's index from spans.begin; or all of them together (per-degree), stored
/// at index 0.
void AppendStateTasks(const SpanCompute& compute, const RoleRows& rows, int32_t rows_index,
                      const OwnSpans& spans, std::vector<SpanTask>& tasks);

/// What this rank answers to others: its own spans as rows, and states over them for queries that
/// come. Everything that a peer says is checked against the plan of the open step.
/// One call at a time, off the executor, while a step is open.
class HeldKv final : public KvHolder {
 public:
  /// Borrows all of it; `layers` are the packed weights.
  HeldKv(SpanCompute& compute, const KvLayout& layout, const KvCache& cache,
         const std::vector<PackedAttentionLayer>& layers, Shard shard)
      : compute_(compute),
        layout_(layout),
        cache_(cache),
        layers_(layers),
        shard_(shard),
        answers_(kMaxIdleAnswerBytes) {}

  void BeginStep(const StepPlan& plan);

  /// Where heads of rows of the next layer are read from; before the first step.
  void ShareHeads(const HeadSum& heads) { heads_.push_back(&heads); }

  absl::StatusOr<SharedBytes> ReadSpans(int64_t layer, const KvRequest& request) override;
  absl::StatusOr<SharedBytes> ComputeStates(int64_t layer, absl::Span<const QueriedRows> parts,
                                            Bf16Rows queries) override;
  absl::StatusOr<SharedBytes> ReadHeads(int64_t layer, const HeadRequest& request) override;

 private:
  // Two rounds of large answers; what a step has not used goes at the next one.
  static constexpr uint64_t kMaxIdleAnswerBytes = uint64_t{64} << 20;

  absl::StatusOr<int32_t> FindSession(SessionId session) const;
  absl::Status CheckLayer(int64_t layer) const;
  absl::StatusOr<PositionRange> PositionsOf(const SessionSpan& span) const;
  absl::Status AppendQueriedRows(const QueriedRows& rows, KeyWindow window);
  void NormalizeSlots();

  SpanCompute& compute_;
  const KvLayout layout_;
  const KvCache& cache_;
  const std::vector<PackedAttentionLayer>& layers_;
  const Shard shard_;
  std::vector<const HeadSum*> heads_;  // by layer; empty: a rank alone
  const StepPlan* plan_ = nullptr;
  std::vector<std::pair<SessionId, int32_t>> index_of_;  // sessions with rows in the step, sorted

  BufferPool answers_;  // their memory
  // Of the queries that are answered.
  std::vector<RoleRows> parts_;
  std::vector<SpanTask> tasks_;
  std::vector<int64_t> slot_begin_, num_spans_;  // per part
  int64_t num_slots_ = 0;
  QueryRows rows_;
  StateSlots slots_;
};

}  // namespace moebius
