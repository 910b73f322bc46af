// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/attention.h"

#include <algorithm>
#include <limits>

#include "moebius/base/check.h"
#include "moebius/kernels/attention_calls.h"

namespace moebius {
namespace {

// Up to so many rows wait for keys and values rather than for sums.
constexpr int64_t kMemoryBoundRows = 8;

const uint16_t* BitsOf(const Bf16* values) { return reinterpret_cast<const uint16_t*>(values); }

size_t PreparedBytes(const Kernels& kernels, int64_t num_rows, int64_t depth) {
  const int64_t num_blocks = (depth + kBlockDepth - 1) / kBlockDepth;
  return static_cast<size_t>(num_blocks * num_rows) * kernels.prepared_block_bytes;
}

// The rows as the tier's block sum reads them.
void PrepareRows(const Kernels& kernels, Bf16Rows rows, void* prepared) {
  const uint16_t* pointers[kMaxTileRows];
  for (int64_t r = 0; r < rows.num_rows; ++r) pointers[r] = BitsOf(rows.row(r));
  kernels.prepare_rows(
      {.rows = pointers, .num_rows = rows.num_rows, .depth = rows.width, .prepared = prepared});
}

RowForm RowFormOf(const Kernels& kernels) {
  if (kernels.prepared_block_bytes == kBlockDepth * sizeof(float)) return RowForm::kFloat;
  return kernels.pair_order == PairOrder::kAdjacent ? RowForm::kBf16 : RowForm::kBf16WithinChain;
}

// From the first to the last key that any row sees.
VisibleKeys UnionOf(absl::Span<const VisibleKeys> visible) {
  VisibleKeys all{std::numeric_limits<int32_t>::max(), 0};
  for (const VisibleKeys& keys : visible) {
    if (keys.empty()) continue;
    all = {std::min(all.begin, keys.begin), std::max(all.end, keys.end)};
  }
  return all;
}

}  // namespace

const AttentionKernels& ChooseAttentionKernels(Tier tier) {
  const AttentionKernels* found = nullptr;
  switch (tier) {
    case Tier::kPortable:
      found = PortableAttentionKernels();
      break;
    case Tier::kAvx2:
      found = Avx2AttentionKernels();
      break;
    case Tier::kAvx512:
      found = Avx512AttentionKernels();
      break;
    case Tier::kAvx512Bf16:
      found = Avx512Bf16AttentionKernels();
      break;
    case Tier::kAmx:
      // Every CPU with the tiles has the conversion, but a virtual one may hide it.
      found =
          __builtin_cpu_supports("avx512bf16") ? AmxBf16AttentionKernels() : AmxAttentionKernels();
      break;
  }
  // A build without this instruction set has the same bits from plain code.
  return found != nullptr ? *found : *PortableAttentionKernels();
}

void ClearStates(SpanStates states) {
  std::fill(states.m.begin(), states.m.end(), -std::numeric_limits<float>::infinity());
  std::fill(states.l.begin(), states.l.end(), 0.0f);
  for (int64_t r = 0; r < states.acc.num_rows; ++r) {
    std::fill_n(states.acc.row(r), states.acc.width, 0.0f);
  }
}

void QueryTile::Prepare(const Kernels& kernels, Bf16Rows queries) {
  MOEBIUS_CHECK_LE(queries.num_rows, kMaxTileRows);
  num_rows_ = queries.num_rows;
  prepared_.Resize(PreparedBytes(kernels, queries.num_rows, queries.width));
  if (num_rows_ > 0) PrepareRows(kernels, queries, prepared_.data());
}

void SpanScratch::Reserve(const Kernels& kernels, const SpanShape& shape) {
  scores.Resize(static_cast<size_t>(kMaxTileRows * shape.key_block));
  weights.Resize(PreparedBytes(kernels, kMaxTileRows, shape.key_block));
}

void AccumulateKeyBlock(const Kernels& kernels, const SpanShape& shape, const QueryTile& queries,
                        absl::Span<const VisibleKeys> visible, const Bf16* keys, const Bf16* values,
                        const Bf16* next_keys, SpanScratch& scratch, SpanStates states) {
  const int64_t num_rows = queries.num_rows();
  MOEBIUS_CHECK_EQ(static_cast<int64_t>(visible.size()), num_rows);
  MOEBIUS_CHECK_EQ(states.acc.num_rows, num_rows);
  MOEBIUS_CHECK_EQ(states.acc.width, shape.value_width);
  const VisibleKeys seen = UnionOf(visible);
  if (seen.empty()) return;
  MOEBIUS_CHECK(seen.begin >= 0 && seen.end <= shape.key_block);
  scratch.Reserve(kernels, shape);

  // Panels of keys that no row sees are left out; their scores are never looked at.
  const int64_t first_panel = seen.begin / kPanelColumns;
  const int64_t num_panels = (seen.end + kPanelColumns - 1) / kPanelColumns - first_panel;
  const bool is_memory_bound = num_rows <= kMemoryBoundRows;
  for (int64_t r = 0; r < num_rows; ++r) {
    scratch.sees[r] = !visible[static_cast<size_t>(r)].empty();
  }
  const AttendBlockCall call{
      .scores = {.prepared_rows = queries.data(),
                 .num_rows = num_rows,
                 .num_blocks = shape.padded_key_width() / kBlockDepth,
                 .panels = BitsOf(keys) + first_panel * kPanelColumns * shape.padded_key_width(),
                 .num_panels = num_panels,
                 .next_panels = is_memory_bound ? BitsOf(values) : nullptr,
                 .num_columns = num_panels * kPanelColumns,
                 .epilogue = Epilogue::kFloat,
                 .out = scratch.scores.data() + first_panel * kPanelColumns,
                 .out_stride = shape.key_block},
      .weigh = {.scores = scratch.scores.data(),
                .num_rows = num_rows,
                .key_block = shape.key_block,
                .scale = shape.scale,
                .visible = visible.data(),
                .m = states.m.data(),
                .l = states.l.data(),
                .alphas = scratch.alphas,
                .form = RowFormOf(kernels),
                .weights = scratch.weights.data()},
      .values = {.prepared_rows = scratch.weights.data(),
                 .num_rows = num_rows,
                 .num_blocks = shape.key_block / kBlockDepth,
                 .panels = BitsOf(values),
                 .num_panels = shape.padded_value_width() / kPanelColumns,
                 .next_panels = is_memory_bound ? BitsOf(next_keys) : nullptr,
                 .num_columns = shape.value_width,
                 .epilogue = Epilogue::kRescale,
                 .row_scales = scratch.alphas,
                 .row_takes = scratch.sees,
                 .out = states.acc.data,
                 .out_stride = states.acc.stride}};
  if (kernels.attention->attend_block != nullptr) return kernels.attention->attend_block(call);
  kernels.block_sum(call.scores);
  kernels.attention->weigh_block(call.weigh);
  kernels.block_sum(call.values);
}

}  // namespace moebius
