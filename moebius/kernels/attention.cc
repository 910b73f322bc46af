// SPDX-License-Identifier: Apache-2.0
#include "moebius/kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "moebius/base/check.h"
#include "moebius/kernels/attention_calls.h"
#include "moebius/kernels/packed_matrix.h"

namespace moebius {
namespace {

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

// Where column `column` of a matrix with `depth` padded K begins among its packed panels, and the
// elements from one block of 32 K to the next.
struct PackedColumn {
  PairOrder order;
  Bf16* panel;
  int64_t column;

  PackedColumn(PairOrder order, Bf16* packed, int64_t padded_depth, int64_t column)
      : order(order),
        panel(packed + column / kPanelColumns * padded_depth * kPanelColumns),
        column(column % kPanelColumns) {}
  Bf16& operator[](int64_t k) const {
    return panel[k / kBlockDepth * kPanelBlockSize +
                 PanelBlockOffset(order, k % kBlockDepth, column)];
  }
};

// Tiles of 32 rows and 32 elements of a matrix, those at its edges padded with +0.
class StagedTile {
 public:
  // Valid until the next call.
  Bf16Rows TileAt(Bf16Rows rows, int64_t row, int64_t column) {
    const int64_t num_rows = std::clamp<int64_t>(rows.num_rows - row, 0, 32);
    const int64_t width = std::clamp<int64_t>(rows.width - column, 0, 32);
    if (num_rows == 32 && width == 32)
      return rows.Slice(row, row + 32).Columns(column, column + 32);
    std::fill(std::begin(tile_), std::end(tile_), Bf16{});
    for (int64_t r = 0; r < num_rows; ++r) {
      std::copy_n(rows.row(row + r) + column, width, tile_ + r * 32);
    }
    return Bf16Rows(tile_, 32, 32);
  }

 private:
  Bf16 tile_[32 * 32];
};

// Two neighbouring bf16 values as one little-endian word: the first in the low half.
uint32_t LoadPair(const Bf16* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair;
}
void StorePair(uint32_t pair, Bf16* to) { std::memcpy(to, &pair, sizeof(pair)); }

// A 32 × 32 block of keys, as PanelBlockOffset says, two pairs of every token at a time.
void PackKeyTile(PairOrder order, Bf16Rows keys, Bf16* tile) {
  for (int64_t k = 0; k < kBlockDepth; k += 4) {
    Bf16* first = tile + k * kPanelColumns;
    Bf16* second = first + 2 * kPanelColumns;
    for (int64_t t = 0; t < kPanelColumns; ++t) {
      const Bf16* key = keys.data + t * keys.stride + k;
      const uint32_t low = LoadPair(key);
      const uint32_t high = LoadPair(key + 2);
      const bool adjacent = order == PairOrder::kAdjacent;
      StorePair(adjacent ? low : low << 16 | (high & 0xFFFF), first + 2 * t);
      StorePair(adjacent ? high : (low & 0xFFFF0000) | high >> 16, second + 2 * t);
    }
  }
}

// to[c] = pairs of low[c] and high[c], 32 columns.
void InterleaveColumns(const Bf16* __restrict low, const Bf16* __restrict high,
                       Bf16* __restrict to) {
  uint32_t pairs[kPanelColumns];
  for (int64_t c = 0; c < kPanelColumns; ++c) {
    pairs[c] = static_cast<uint32_t>(low[c].bits) | static_cast<uint32_t>(high[c].bits) << 16;
  }
  std::memcpy(to, pairs, sizeof(pairs));
}

// A 32 × 32 block of values: K runs over the tokens.
void PackValueTile(PairOrder order, Bf16Rows values, Bf16* tile) {
  const auto row = [&](int64_t t) { return values.data + t * values.stride; };
  for (int64_t t = 0; t < kBlockDepth; t += 4) {
    Bf16* first = tile + t * kPanelColumns;
    Bf16* second = first + 2 * kPanelColumns;
    if (order == PairOrder::kAdjacent) {
      InterleaveColumns(row(t), row(t + 1), first);
      InterleaveColumns(row(t + 2), row(t + 3), second);
    } else {
      InterleaveColumns(row(t + 2), row(t), first);
      InterleaveColumns(row(t + 3), row(t + 1), second);
    }
  }
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

const AttentionKernels& AttentionKernelsOf(Tier tier) {
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
    case Tier::kAmx:
      // Every CPU with the tiles has the conversion, but a virtual one may hide it.
      found = __builtin_cpu_supports("avx512bf16") ? Avx512Bf16AttentionKernels()
                                                   : Avx512AttentionKernels();
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
  weights.Resize(static_cast<size_t>(kMaxTileRows * shape.key_block));
  prepared.Resize(PreparedBytes(kernels, kMaxTileRows, shape.key_block));
  products.Resize(static_cast<size_t>(kMaxTileRows * shape.padded_value_width()));
}

void AccumulateKeyBlock(const Kernels& kernels, const SpanShape& shape, const QueryTile& queries,
                        absl::Span<const VisibleKeys> visible, const Bf16* keys, const Bf16* values,
                        SpanScratch& scratch, SpanStates states) {
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
  kernels.block_sum(
      {.prepared_rows = queries.data(),
       .num_rows = num_rows,
       .num_blocks = shape.padded_key_width() / kBlockDepth,
       .panels = BitsOf(keys) + first_panel * kPanelColumns * shape.padded_key_width(),
       .num_panels = num_panels,
       .num_columns = num_panels * kPanelColumns,
       .epilogue = Epilogue::kFloat,
       .out = scratch.scores.data() + first_panel * kPanelColumns,
       .out_stride = shape.key_block});

  const AttentionKernels& rows = AttentionKernelsOf(kernels.tier);
  rows.weigh_block({.scores = scratch.scores.data(),
                    .num_rows = num_rows,
                    .key_block = shape.key_block,
                    .scale = shape.scale,
                    .visible = visible.data(),
                    .m = states.m.data(),
                    .l = states.l.data(),
                    .alphas = scratch.alphas,
                    .weights = reinterpret_cast<uint16_t*>(scratch.weights.data())});

  PrepareRows(kernels, Bf16Rows(scratch.weights.data(), num_rows, shape.key_block),
              scratch.prepared.data());
  kernels.block_sum({.prepared_rows = scratch.prepared.data(),
                     .num_rows = num_rows,
                     .num_blocks = shape.key_block / kBlockDepth,
                     .panels = BitsOf(values),
                     .num_panels = shape.padded_value_width() / kPanelColumns,
                     .num_columns = shape.padded_value_width(),
                     .epilogue = Epilogue::kFloat,
                     .out = scratch.products.data(),
                     .out_stride = shape.padded_value_width()});

  rows.rescale({.products = scratch.products.data(),
                .products_stride = shape.padded_value_width(),
                .num_rows = num_rows,
                .width = shape.value_width,
                .visible = visible.data(),
                .alphas = scratch.alphas,
                .acc = states.acc.data,
                .acc_stride = states.acc.stride});
}

void StoreKey(PairOrder order, const SpanShape& shape, const Bf16* key, int64_t token,
              Bf16* block) {
  const PackedColumn column(order, block, shape.padded_key_width(), token);
  for (int64_t k = 0; k < shape.key_width; ++k) column[k] = key[k];
  for (int64_t k = shape.key_width; k < shape.padded_key_width(); ++k) column[k] = Bf16{};
}

void StoreValue(PairOrder order, const SpanShape& shape, const Bf16* value, int64_t token,
                Bf16* block) {
  const int64_t depth_offset =
      token / kBlockDepth * kPanelBlockSize + PanelBlockOffset(order, token % kBlockDepth, 0);
  for (int64_t d = 0; d < shape.padded_value_width(); d += kPanelColumns) {
    Bf16* column = block + d * shape.key_block + depth_offset;
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const bool present = value != nullptr && d + c < shape.value_width;
      column[2 * c] = present ? value[d + c] : Bf16{};
    }
  }
}

void LoadKey(PairOrder order, const SpanShape& shape, const Bf16* block, int64_t token, Bf16* key) {
  const PackedColumn column(order, const_cast<Bf16*>(block), shape.padded_key_width(), token);
  for (int64_t k = 0; k < shape.key_width; ++k) key[k] = column[k];
}

void LoadValue(PairOrder order, const SpanShape& shape, const Bf16* block, int64_t token,
               Bf16* value) {
  const int64_t depth_offset =
      token / kBlockDepth * kPanelBlockSize + PanelBlockOffset(order, token % kBlockDepth, 0);
  for (int64_t d = 0; d < shape.value_width; d += kPanelColumns) {
    const Bf16* column = block + d * shape.key_block + depth_offset;
    const int64_t count = std::min<int64_t>(kPanelColumns, shape.value_width - d);
    for (int64_t c = 0; c < count; ++c) value[d + c] = column[2 * c];
  }
}

void PackKeyBlock(PairOrder order, const SpanShape& shape, Bf16Rows keys, Bf16* block) {
  MOEBIUS_CHECK(keys.num_rows <= shape.key_block && keys.width == shape.key_width);
  StagedTile staged;
  for (int64_t t = 0; t < shape.key_block; t += kPanelColumns) {
    Bf16* panel = block + t * shape.padded_key_width();
    for (int64_t k = 0; k < shape.padded_key_width(); k += kBlockDepth) {
      PackKeyTile(order, staged.TileAt(keys, t, k), panel + k * kPanelColumns);
    }
  }
}

void PackValueBlock(PairOrder order, const SpanShape& shape, Bf16Rows values, Bf16* block) {
  MOEBIUS_CHECK(values.num_rows <= shape.key_block && values.width == shape.value_width);
  StagedTile staged;
  for (int64_t d = 0; d < shape.padded_value_width(); d += kPanelColumns) {
    Bf16* panel = block + d * shape.key_block;
    for (int64_t t = 0; t < shape.key_block; t += kBlockDepth) {
      PackValueTile(order, staged.TileAt(values, t, d), panel + t * kPanelColumns);
    }
  }
}

}  // namespace moebius
