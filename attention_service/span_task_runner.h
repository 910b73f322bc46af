// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"

#include "attention_service/attention_weights.h"
#include "attention_service/foreign_kv.h"
#include "attention_service/kv_cache.h"
#include "attention_service/packed_attention.h"
#include "moebius/attention/span.h"
#include "moebius/attention/span_tasks.h"
#include "moebius/kernels/attention.h"
#include "moebius/kernels/kernels.h"
#include "moebius/tensor/buffer.h"

namespace moebius {

/// How queries meet keys. Grouped: the cached heads themselves. MLA expanded: each head's keys and
/// values are made from the latents. MLA absorbed: queries are taken into the latents' space, and
/// each span's result out of it by W_uv.
enum class AttentionForm { kGrouped, kExpanded, kAbsorbed };

/// The keys and values that tasks of one layer meet: this rank's own, and foreign spans.
struct KvView {
  const KvCache* cache = nullptr;
  int64_t layer = 0;
  const ForeignKv* foreign = nullptr;  // null: every span is in the cache

  /// A block and the position of its first key.
  struct Block {
    const Bf16* data = nullptr;
    int64_t begin = 0;
  };
  /// That of `position`, which lies in the span at `positions`. It is there, unless
  /// `may_be_absent`: null data then.
  Block BlockOf(int64_t session_index, int64_t span, PositionRange positions, int64_t position,
                const KvLayout& layout, bool may_be_absent = false) const {
    if (foreign != nullptr) {
      if (const Bf16* found = foreign->Find(session_index, span)) {
        const int64_t key_block = layout.shape().key_block;
        const int64_t block = (position - positions.begin) / key_block;
        return {found + block * layout.layer_elements(), positions.begin + block * key_block};
      }
    }
    const KvCache::Home home = cache->HomeOf(session_index, position);
    if (may_be_absent && !cache->HasBlock(session_index, home.block)) return {};
    return {cache->Block(session_index, home.block, layer), position - home.token};
  }
};

/// What a span task works on in one layer.
struct SpanTaskInput {
  const PackedAttentionLayer* weights = nullptr;
  KvView kv;
  KeyWindow window;
  AttentionForm form = AttentionForm::kGrouped;
  RoleRows rows;
  /// Grouped and expanded: [step rows, heads * qk_head_dim]. Absorbed: the RoleRows' queries,
  /// [num_rows * heads, rank + rope].
  Bf16Rows queries;
};

/// The fold of the spans so far, of rows whose spans come in several rounds: per (row in RoleRows,
/// head). Under the per-degree sum the one state that goes through all of them. Null acc.data: all
/// spans of a row come at once.
struct FoldCarry {
  MutableFloatRows acc;  // [rows * heads, v_head_dim]
  float* m = nullptr;
  float* l = nullptr;

  bool is_kept() const { return acc.data != nullptr; }
};

/// Where a task's results go: finished rows into `out`, the fold of rows that see later spans into
/// `carry`, states of tasks that do not finish into slots
/// ((row in RoleRows * heads + head) * num_spans + the task's slot_begin + span - span_begin);
/// under the per-degree sum a task stores one state, the first of these.
struct SpanTaskOutput {
  MutableBf16Rows out;  // [step rows, heads * v_head_dim]
  MutableFloatRows slot_acc;
  float* slot_m = nullptr;
  float* slot_l = nullptr;
  int64_t* slot_keys = nullptr;  // of generated rows under the per-degree sum, where wanted
  int64_t num_spans = 0;
  FoldCarry carry;
};

/// Query heads of one key group in an absorbed task, at most: with more heads the keys are packed
/// again for the next group.
inline constexpr int64_t kAbsorbedGroupHeads = kMaxTileRows;
/// Spans of an absorbed task whose sums leave the latents' space together, at most: W_uv is read
/// once for all of them.
inline constexpr int64_t kSpansLeavingAtOnce = 16;

/// Runs span tasks on one thread, with that thread's scratch. Under the canonical sum each span has
/// a state of its own, and these are folded; under the per-degree sum one state takes the key
/// blocks of all spans that meet the rows, in the order in which they come, and is normalised once;
/// a generated row has such a state in each segment (SessionSpans::SegmentOf), and these are
/// folded.
///
/// The scratch grows with the rows of a task and never with the number of its spans, of which no
/// more than kSpansLeavingAtOnce wait.
class SpanTaskRunner {
 public:
  SpanTaskRunner(const AttentionFacts& facts, const SpanGeometry& geometry, const KvLayout& layout,
                 const Kernels& kernels);

  void Run(const SpanTask& task, const SpanTaskInput& input, const SpanTaskOutput& output);

 private:
  // Packed keys and values of one block.
  struct BlockView {
    const Bf16* keys = nullptr;
    const Bf16* values = nullptr;
  };

  void Start(const SpanTask& task, const SpanTaskInput& input);
  void PrepareQueries(const SpanTask& task, const SpanTaskInput& input);
  void RunCarried(const SpanTask& task, const SpanTaskInput& input, const SpanTaskOutput& output);
  void ComputeSpan(const SpanTask& task, const SpanTaskInput& input, int64_t span);
  const Bf16* KeysAfter(const SpanTask& task, const SpanTaskInput& input, int64_t span,
                        int64_t key) const;
  int64_t SpanAfter(const SpanTask& task, const SpanTaskInput& input, int64_t span) const;
  BlockView View(const SpanTask& task, const SpanTaskInput& input, const KvView::Block& block);
  BlockView ExpandBlock(const LatentHead& head, Bf16Rows latents);
  void RunSegments(const SpanTask& task, const SpanTaskInput& input, const SpanTaskOutput& output);
  void FoldSegment(const SpanTaskInput& input);

  // A state per row of the task, of which rows [first_row, row_end) see something.
  struct TaskStates {
    MutableFloatRows acc;  // [num_rows_, v_head_dim]
    float* m = nullptr;
    float* l = nullptr;
    int64_t first_row = 0;
    int64_t row_end = 0;
  };
  // Absorbed: states whose sums are still in the latents' space.
  struct WaitingSpan {
    int64_t span = 0;
    int64_t first_row = 0;
    int64_t row_end = 0;
  };
  TaskStates CurrentStates();
  void RoundIntoWaiting(int64_t index);
  void LeaveLatentSpace(const SpanTaskInput& input, int64_t num_waiting);
  void LeaveLatentSpace(const SpanTaskInput& input);
  void LetSpanWait(int64_t span);
  void TakeWaitingSpans(const SpanTask& task, const SpanTaskInput& input,
                        const SpanTaskOutput& output);
  void TakeSpan(const SpanTask& task, const SpanTaskOutput& output, const TaskStates& states,
                int64_t span);
  void FoldRow(const TaskStates& states, int64_t r, int64_t num_keys);
  void StoreStates(const SpanTask& task, const SpanTaskOutput& output, const TaskStates& states,
                   int64_t index);
  void LoadFold(const SpanTask& task, const FoldCarry& carry);
  void SwapWithFold(RowBatch<float>& acc);
  void StoreFold(const SpanTask& task, const FoldCarry& carry);
  void Finish(const SpanTask& task, const SpanTaskInput& input, const SpanTaskOutput& output);

  // Of the task's row r = row * num_heads_ + head.
  int64_t PositionOf(int64_t r) const { return position_begin_ + r / num_heads_; }
  // Of row r among the (row in RoleRows, head).
  int64_t CarryRow(const SpanTask& task, int64_t r) const {
    return (task.row_begin + r / num_heads_) * facts_.config.num_query_heads + head_begin_ +
           r % num_heads_;
  }

  AttentionFacts facts_;
  KvLayout layout_;
  const Kernels& kernels_;
  SpanGeometry geometry_;

  // Of the task that runs.
  AttentionForm form_ = AttentionForm::kGrouped;
  SpanShape shape_;
  int64_t head_begin_ = 0;
  int64_t num_heads_ = 1;
  int64_t num_rows_ = 0;  // task rows * heads
  int64_t position_begin_ = 0;
  std::optional<SessionSpans> spans_;
  KeyWindow window_;
  int64_t first_row_ = 0;  // rows [first_row_, row_end_) see the current span
  int64_t row_end_ = 0;

  SpanScratch scratch_;
  std::deque<QueryTile> tiles_;
  RowBatch<Bf16> queries_;
  RowBatch<float> acc_;  // of the span, in the form's value space
  std::vector<float> m_, l_;
  // Absorbed: bf16(acc), and that times W_uv, for each waiting state its num_rows_ rows.
  RowBatch<Bf16> rounded_acc_;
  RowBatch<float> value_acc_;
  absl::InlinedVector<WaitingSpan, kSpansLeavingAtOnce> waiting_;
  std::vector<float> waiting_m_, waiting_l_;
  RowBatch<float> fold_acc_;  // the fold of the spans so far
  std::vector<float> fold_m_, fold_l_;
  std::vector<int64_t> fold_keys_;
  std::vector<int64_t> segment_keys_;  // per task row: what it has met of the segment
  RowBatch<Bf16> expanded_keys_, expanded_values_;
  Array<Bf16> packed_keys_, packed_values_;
};

}  // namespace moebius
