// SPDX-License-Identifier: Apache-2.0
// Against the definition in fp64, and properties that need no oracle.
#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/attention/merge.h"
#include "moebius/kernels/attention.h"
#include "moebius/kernels/packed_matrix.h"
#include "tests/attention_service/attention_fixture.h"

namespace moebius {
namespace {

using testing::AttentionCase;
using testing::MakeAttentionCase;
using testing::MakePipeline;
using testing::MakeRows;

// softmax(q·k·scale)·v in fp64 for the query at `position`, which sees the last `window` keys; 0:
// all.
std::vector<double> AttendInDouble(absl::Span<const Bf16> query, Bf16Rows keys, Bf16Rows values,
                                   int64_t position, int64_t window, double scale) {
  if (window > 0 && position >= window) {
    keys = keys.Slice(position + 1 - window, keys.num_rows);
    values = values.Slice(position + 1 - window, values.num_rows);
    position = window - 1;
  }
  std::vector<double> scores;
  for (int64_t j = 0; j <= position; ++j) {
    double sum = 0;
    for (size_t i = 0; i < query.size(); ++i) {
      sum += static_cast<double>(ToFloat(query[i])) * ToFloat(keys.row(j)[i]);
    }
    scores.push_back(sum * scale);
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double denominator = 0;
  std::vector<double> out(static_cast<size_t>(values.width));
  for (int64_t j = 0; j <= position; ++j) {
    const double weight = std::exp(scores[static_cast<size_t>(j)] - max);
    denominator += weight;
    for (size_t d = 0; d < out.size(); ++d) out[d] += weight * ToFloat(values.row(j)[d]);
  }
  for (double& element : out) element /= denominator;
  return out;
}

// The output projection is the identity, so that heads come out as they are.
AttentionCase MakeCaseWithOpenHeads(const std::string& name, int64_t span) {
  AttentionCase model = MakeAttentionCase(name, span);
  const int64_t width = int64_t{model.facts.config.num_query_heads} * model.facts.config.v_head_dim;
  model.facts.hidden_size = width;
  for (AttentionLayerWeights& layer : model.layers) {
    for (RowBatch<Bf16>* matrix : {&layer.q.bf16(), &layer.k.bf16(), &layer.v.bf16(),
                                   &layer.q_a.bf16(), &layer.kv_a.bf16()}) {
      if (matrix->num_rows() == 0) continue;
      *matrix = MakeRows(32 + static_cast<uint64_t>(matrix->num_rows()), matrix->num_rows(), width,
                         0.12f);
    }
    layer.o.bf16().Reset(width, width);
    for (int64_t i = 0; i < width; ++i) {
      std::fill_n(layer.o.bf16().rows().row(i), width, Bf16{});
      layer.o.bf16().rows().row(i)[i] = ToBf16(1.0f);
    }
  }
  return model;
}

// Layer 0 of a session of 300 prompt rows, every 13th row of every head, against fp64.
void ExpectWithinTwiceTheOnePassError(const AttentionCase& model) {
  const AttentionConfig& config = model.facts.config;
  const RowBatch<Bf16> rows = MakeRows(5, 300, model.facts.hidden_size);
  Executor executor(2);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  const RowBatch<Bf16> found = testing::RunStep(*pipeline, SessionId(1), rows.rows(), 0, 300, 300);
  const testing::ReferenceProjections projected = testing::ProjectByReference(model, rows.rows());
  const int64_t group = config.num_query_heads / config.num_kv_heads;
  const int64_t d = config.qk_head_dim;
  const int64_t dv = config.v_head_dim;
  double max_error = 0, max_value = 0;
  for (int64_t h = 0; h < config.num_query_heads; ++h) {
    RowBatch<Bf16> keys, values;
    Bf16Rows k = projected.keys.rows(), v = projected.values.rows();
    if (config.mla.has_value()) {
      testing::ExpandByReference(model, h, projected.keys.rows(), keys, values);
      k = keys.rows();
      v = values.rows();
    } else {
      k = k.Columns(h / group * d, (h / group + 1) * d);
      v = v.Columns(h / group * dv, (h / group + 1) * dv);
    }
    for (int64_t t = 0; t < 300; t += 13) {
      const std::vector<double> expected =
          AttendInDouble(projected.queries.rows().Columns(h * d, (h + 1) * d).span(t), k, v, t,
                         config.WindowOf(0), config.softmax_scale);
      for (int64_t i = 0; i < dv; ++i) {
        const double value = ToFloat(found.rows().row(t)[h * dv + i]);
        max_error = std::max(max_error, std::abs(value - expected[static_cast<size_t>(i)]));
        max_value = std::max(max_value, std::abs(expected[static_cast<size_t>(i)]));
      }
    }
  }
  // Rounding P and the output to bf16 (2^-9 each, relative) is all that a one-pass kernel loses.
  EXPECT_LE(max_error, 2 * 0x1p-9 * max_value) << model.name << ", window " << config.WindowOf(0);
  EXPECT_GT(max_value, 0.5) << model.name;
}

TEST(AttentionAccuracyTest, OfEveryHeadStaysWithinTwiceTheOnePassError) {
  for (const char* name : {"gqa", "mqa", "mha", "mla", "mla_yarn"}) {
    ExpectWithinTwiceTheOnePassError(MakeCaseWithOpenHeads(name, 64));
  }
}

TEST(AttentionAccuracyTest, OfEveryHeadInAWindowStaysWithinTwiceTheOnePassError) {
  for (const char* name : {"gqa", "mqa", "mha", "mla", "mla_yarn"}) {
    AttentionCase model = MakeCaseWithOpenHeads(name, 64);
    for (const int64_t size : {1, 3, 63, 64, 65, 1000}) {
      model.facts.config.windows = {size, 0};
      ExpectWithinTwiceTheOnePassError(model);
    }
  }
}

TEST(AttentionAccuracyTest, OfTheAbsorbedFormIsThatOfTheExpandedOne) {
  const AttentionCase model = MakeCaseWithOpenHeads("mla", 64);
  const RowBatch<Bf16> rows = MakeRows(6, 200, model.facts.hidden_size);
  Executor executor(2);
  const auto pipeline = MakePipeline(model, BestKernels(), executor);
  const RowBatch<Bf16> expanded =
      testing::RunStep(*pipeline, SessionId(1), rows.rows(), 0, 200, 200);
  const RowBatch<Bf16> absorbed = testing::RunStep(*pipeline, SessionId(2), rows.rows(), 0, 200, 0);
  double max_error = 0, max_value = 0;
  bool differs = false;
  for (int64_t t = 0; t < 200; ++t) {
    for (int64_t c = 0; c < rows.width(); ++c) {
      const double a = ToFloat(expanded.rows().row(t)[c]);
      const double b = ToFloat(absorbed.rows().row(t)[c]);
      max_error = std::max(max_error, std::abs(a - b));
      max_value = std::max(max_value, std::abs(a));
      differs = differs || a != b;
    }
  }
  EXPECT_TRUE(differs);  // else the role was ignored
  EXPECT_LE(max_error, 0.03 * max_value);
}

// Keys that only one query direction meets, values that say which key they belong to: a wrong
// pairing of positions gives another integer.
TEST(AttentionAccuracyTest, PairsEveryKeyWithItsOwnValue) {
  constexpr int64_t kBlock = 64;
  constexpr int64_t kKeys = 200;
  const SpanShape shape{.key_width = 48, .value_width = 24, .key_block = kBlock, .scale = 1.0f};
  for (const Tier tier : HostTiers()) {
    const Kernels& kernels = *FindKernels(tier);
    for (int64_t target = 0; target < kKeys; target += 7) {
      Array<Bf16> keys(static_cast<size_t>(shape.key_block_elements()));
      Array<Bf16> values(static_cast<size_t>(shape.value_block_elements()));
      std::vector<float> acc(24);
      float m = 0, l = 0;
      SpanStates states{MutableFloatRows(acc.data(), 1, 24), absl::MakeSpan(&m, 1),
                        absl::MakeSpan(&l, 1)};
      ClearStates(states);
      std::vector<Bf16> query(48);
      query[static_cast<size_t>(target % 40)] = ToBf16(16.0f);
      query[static_cast<size_t>(40 + target / 40)] = ToBf16(16.0f);
      QueryTile tile;
      tile.Prepare(kernels, Bf16Rows(query.data(), 1, 48));
      SpanScratch scratch;
      for (int64_t begin = 0; begin < kKeys; begin += kBlock) {
        for (int64_t t = 0; t < kBlock; ++t) {
          const int64_t position = begin + t;
          std::vector<Bf16> key(48), value(24);
          key[static_cast<size_t>(position % 40)] = ToBf16(4.0f);
          // Two marks, as digits of the position: only the target has both of the query's.
          key[static_cast<size_t>(40 + position / 40)] = ToBf16(4.0f);
          for (int64_t i = 0; i < 24; ++i) {
            value[static_cast<size_t>(i)] = ToBf16(static_cast<float>(position + 1 + (i % 2)));
          }
          StoreKey(kernels.pair_order, shape, key.data(), t, keys.data());
          StoreValue(kernels.pair_order, shape, position < kKeys ? value.data() : nullptr, t,
                     values.data());
        }
        const VisibleKeys visible{0, static_cast<int32_t>(std::min(kBlock, kKeys - begin))};
        AccumulateKeyBlock(kernels, shape, tile, absl::MakeConstSpan(&visible, 1), keys.data(),
                           values.data(), scratch, states);
      }
      // Scores 128 and at most 64: every other key weighs nothing in fp32.
      EXPECT_EQ(acc[0] / l, static_cast<float>(target + 1)) << TierName(tier);
      EXPECT_EQ(acc[1] / l, static_cast<float>(target + 2)) << TierName(tier);
    }
  }
}

}  // namespace
}  // namespace moebius
