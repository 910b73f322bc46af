// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"

#include "attention_service/attention_pipeline.h"
#include "attention_service/kv_layout.h"
#include "moebius/attention/session_spans.h"
#include "moebius/attention/shard.h"
#include "moebius/attention/span.h"
#include "moebius/attention/step_plan.h"
#include "moebius/base/strong_id.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// The KV that one rank keeps of all sessions: of the spans that it owns, in blocks of `key_block`
/// positions and all layers, under a budget. A block lies at absolute positions; under the
/// per-degree sum, whose spans begin anywhere, a session's own positions follow one another instead
/// and a block holds the next `key_block` of them.
/// Memory is taken from the system as it is first needed, by the block or by the huge page where
/// blocks are smaller, never beyond the budget (but for the end of a page that holds no whole
/// block), and kept for reuse.
///
/// Invariants:
/// 1. used_blocks = Σ over sessions of their owned blocks <= num_blocks.
/// 2. Blocks come out zeroed: absent values are +0.
/// 3. After AbortStep or EndSession the figures are those from before BeginStep or the session.
///
/// Not thread-safe, save `usage`. Blocks may be written and read by many threads at disjoint
/// positions while a step is open.
class KvCache {
 public:
  KvCache(const KvLayout& layout, const SpanGeometry& geometry, int64_t num_layers,
          int64_t num_blocks, Shard shard = {});

  /// The contract of AttentionPipeline::BeginStep; the plan is valid and no step is open.
  absl::Status BeginStep(const StepPlan& plan);
  void CommitStep();
  void AbortStep();
  void EndSession(SessionId session);

  bool has_open_step() const { return open_; }
  int64_t SessionLength(SessionId session) const;
  KvUsage usage() const;

  /// Where the key and value of a position are kept, which is in a span that this rank owns.
  struct Home {
    int64_t block = 0;
    int64_t token = 0;  // in the block
  };
  /// Of the open step's session `session_index` (in the plan).
  Home HomeOf(int64_t session_index, int64_t position) const {
    const Session& session = *step_[static_cast<size_t>(session_index)].session;
    const int64_t slot = session.spans.is_canonical()
                             ? position
                             : session.spans.NumPositionsOf(session.owner, position);
    return {slot / block_tokens_, slot % block_tokens_};
  }

  /// Layer `layer` of block `block_index` of the open step's session `session_index` (in the plan);
  /// the block is one of HomeOf.
  Bf16* Block(int64_t session_index, int64_t block_index, int64_t layer) const {
    return static_cast<Bf16*>(
               const_cast<void*>(step_[session_index].session->blocks[block_index].data())) +
           layer * layout_.layer_elements();
  }

  /// Whether that block is there: false for one that no position has needed yet, and for spans of
  /// other ranks.
  bool HasBlock(int64_t session_index, int64_t block_index) const {
    const Session& session = *step_[static_cast<size_t>(session_index)].session;
    return block_index >= 0 && block_index < static_cast<int64_t>(session.blocks.size()) &&
           session.blocks[static_cast<size_t>(block_index)].data() != nullptr;
  }

  static int64_t BlockBytes(const KvLayout& layout, int64_t num_layers) {
    return num_layers * layout.layer_elements() * static_cast<int64_t>(sizeof(Bf16));
  }

 private:
  struct Session {
    SessionSpans spans;
    int32_t first_rank = 0;
    int32_t owner = 0;   // this rank, as OwnerOfSpan counts for the session
    int64_t length = 0;  // committed positions
    int64_t owned_blocks = 0;
    std::vector<Buffer> blocks;  // by block index; empty where another rank owns the span
  };
  struct StepSession {
    SessionId id;
    Session* session = nullptr;
    int64_t position_end = 0;
    bool is_new = false;
  };

  absl::Status CheckRoom(const StepPlan& plan) const;
  absl::Status CheckSession(const SessionRows& rows, const Session& session) const;
  Session NewSession(const SessionRows& rows) const;
  // Positions [0, length) as they are kept, and the blocks for them.
  int64_t NumSlots(const Session& session, int64_t length) const;
  int64_t NumBlocks(const Session& session, int64_t length) const {
    return geometry_.NumBlocks(NumSlots(session, length));
  }
  bool OwnsBlock(const Session& session, int64_t block) const;
  int64_t NumOwnedBlocks(const Session& session, int64_t begin, int64_t end) const;
  bool OwnsAny(const Session& session, int64_t end) const;
  void TakeMemory();
  Buffer TakeBlock();
  void ReturnBlocks(Session& session, size_t keep);

  KvLayout layout_;
  SpanGeometry geometry_;
  Shard shard_;
  int64_t num_layers_;
  int64_t block_tokens_;
  int64_t num_blocks_;
  std::map<SessionId, Session> sessions_;  // stable addresses
  std::vector<Buffer> memory_;             // that blocks lie in
  int64_t num_taken_ = 0;                  // blocks in it
  std::vector<Buffer> free_;
  std::vector<StepSession> step_;  // of the open step, in the plan's order
  bool open_ = false;
  std::atomic<int64_t> used_blocks_{0};
  std::atomic<int64_t> num_sessions_{0};
};

}  // namespace moebius
