// SPDX-License-Identifier: Apache-2.0
#include "tests/attention_service/attention_fixture.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "attention_service/kv_cache.h"
#include "attention_service/kv_layout.h"
#include "moebius/base/random.h"

namespace moebius::testing {
namespace {

class WeightMaker {
 public:
  explicit WeightMaker(uint64_t seed) : random_(seed) {}

  RowBatch<Bf16> Matrix(int64_t num_outputs, int64_t num_inputs) {
    RowBatch<Bf16> weights(num_outputs, num_inputs);
    // Near 1 / sqrt(inputs), from a few values, without libm.
    const float scale = num_inputs >= 64 ? 0.15f : 0.25f;
    for (int64_t r = 0; r < num_outputs; ++r) {
      for (Bf16& w : weights.rows().span(r)) w = ToBf16(random_.Normal() * scale);
    }
    return weights;
  }
  RowBatch<Bf16> Norm(int64_t width) {
    RowBatch<Bf16> weights(1, width);
    for (Bf16& w : weights.rows().span(0)) w = ToBf16(1.0f + 0.2f * random_.Normal());
    return weights;
  }
  RowBatch<float> Bias(int64_t width) {
    RowBatch<float> bias(1, width);
    for (float& b : bias.rows().span(0)) b = 0.3f * random_.Normal();
    return bias;
  }

 private:
  Random random_;
};

AttentionFacts GroupedFacts(int32_t heads, int32_t kv_heads, int32_t head_dim, float scale) {
  AttentionFacts facts{.hidden_size = 64, .num_layers = 2};
  facts.config.num_query_heads = heads;
  facts.config.num_kv_heads = kv_heads;
  facts.config.qk_head_dim = head_dim;
  facts.config.v_head_dim = head_dim;
  facts.config.softmax_scale = scale;
  facts.config.rope = {.dim = head_dim, .theta = 10000.0, .pairing = RopePairing::kHalves};
  return facts;
}

AttentionFacts LatentFacts(int32_t heads, int32_t v_head_dim, int32_t q_lora_rank) {
  AttentionFacts facts{.hidden_size = 64, .num_layers = 2};
  facts.config.num_query_heads = heads;
  facts.config.num_kv_heads = heads;
  facts.config.qk_head_dim = 24;
  facts.config.v_head_dim = v_head_dim;
  facts.config.softmax_scale = 0.20412415f;
  facts.config.rope = {.dim = 8, .theta = 10000.0, .pairing = RopePairing::kInterleaved};
  facts.config.mla = MlaConfig{
      .q_lora_rank = q_lora_rank, .kv_lora_rank = 32, .qk_nope_dim = 16, .qk_rope_dim = 8};
  return facts;
}

AttentionFacts FactsOf(const std::string& name) {
  if (name == "gqa") {
    AttentionFacts facts = GroupedFacts(8, 2, 24, 0.20412415f);
    facts.config.qk_norm = QkNorm::kPerHead;
    return facts;
  }
  if (name == "mqa") {
    AttentionFacts facts = GroupedFacts(4, 1, 40, 0.15811388f);
    facts.config.qkv_bias = true;
    facts.config.rope.dim = 20;
    return facts;
  }
  if (name == "mha") {
    AttentionFacts facts = GroupedFacts(4, 4, 16, 0.25f);
    facts.config.qk_norm = QkNorm::kWholeProjection;
    return facts;
  }
  if (name == "mla") return LatentFacts(4, 16, 24);
  if (name == "mla_many_heads") return LatentFacts(70, 16, 24);
  EXPECT_EQ(name, "mla_yarn");
  AttentionFacts facts = LatentFacts(6, 24, 0);
  facts.config.softmax_scale = 0.29f;
  facts.config.rope_amplitude = 1.1f;
  facts.config.rope.yarn = YarnConfig{.factor = 8, .original_max_positions = 256};
  return facts;
}

AttentionLayerWeights MakeLayer(const AttentionFacts& facts, uint64_t seed) {
  WeightMaker make(seed);
  const AttentionConfig& config = facts.config;
  const int64_t q = int64_t{config.num_query_heads} * config.qk_head_dim;
  AttentionLayerWeights weights;
  if (config.mla.has_value()) {
    const MlaConfig& mla = *config.mla;
    if (mla.q_lora_rank > 0) {
      weights.q_a = make.Matrix(mla.q_lora_rank, facts.hidden_size);
      weights.q_a_norm = make.Norm(mla.q_lora_rank);
      weights.q_b = make.Matrix(q, mla.q_lora_rank);
    } else {
      weights.q = make.Matrix(q, facts.hidden_size);
    }
    weights.kv_a = make.Matrix(mla.kv_lora_rank + mla.qk_rope_dim, facts.hidden_size);
    weights.kv_a_norm = make.Norm(mla.kv_lora_rank);
    weights.kv_b = make.Matrix(
        config.num_query_heads * int64_t{mla.qk_nope_dim + config.v_head_dim}, mla.kv_lora_rank);
  } else {
    const int64_t k = int64_t{config.num_kv_heads} * config.qk_head_dim;
    const int64_t v = int64_t{config.num_kv_heads} * config.v_head_dim;
    weights.q = make.Matrix(q, facts.hidden_size);
    weights.k = make.Matrix(k, facts.hidden_size);
    weights.v = make.Matrix(v, facts.hidden_size);
    if (config.qkv_bias) {
      weights.q_bias = make.Bias(q);
      weights.k_bias = make.Bias(k);
      weights.v_bias = make.Bias(v);
    }
    if (config.qk_norm != QkNorm::kNone) {
      const bool whole = config.qk_norm == QkNorm::kWholeProjection;
      weights.q_norm = make.Norm(whole ? q : config.qk_head_dim);
      weights.k_norm = make.Norm(whole ? k : config.qk_head_dim);
    }
  }
  weights.o = make.Matrix(facts.hidden_size, int64_t{config.num_query_heads} * config.v_head_dim);
  return weights;
}

template <typename T>
RowBatch<T> CopyOf(const RowBatch<T>& batch) {
  RowBatch<T> copy(batch.num_rows(), batch.width());
  for (int64_t r = 0; r < batch.num_rows(); ++r) {
    std::copy_n(batch.rows().row(r), batch.width(), copy.rows().row(r));
  }
  return copy;
}

WeightMatrix CopyOf(const WeightMatrix& matrix) { return CopyOf(matrix.bf16()); }

}  // namespace

std::vector<std::string> AttentionCaseNames() { return {"gqa", "mqa", "mha", "mla", "mla_yarn"}; }

AttentionCase MakeAttentionCase(const std::string& name, int64_t span) {
  AttentionCase model{.name = name, .facts = FactsOf(name)};
  model.facts.span = span;
  model.facts.key_block = std::min<int64_t>(128, span);
  for (int64_t layer = 0; layer < model.facts.num_layers; ++layer) {
    model.layers.push_back(MakeLayer(model.facts, 1000 + static_cast<uint64_t>(layer)));
  }
  return model;
}

RowBatch<Bf16> MakeRows(uint64_t seed, int64_t num_rows, int64_t width, float scale) {
  Random random(seed);
  RowBatch<Bf16> rows(num_rows, width);
  for (int64_t r = 0; r < num_rows; ++r) {
    for (Bf16& element : rows.rows().span(r)) element = ToBf16(random.Normal() * scale);
  }
  return rows;
}

std::unique_ptr<AttentionPipeline> MakePipeline(const AttentionCase& model, const Kernels& kernels,
                                                Executor& executor, int64_t tokens,
                                                const Sharding& sharding) {
  const auto source = [&](int64_t layer) -> absl::StatusOr<AttentionLayerWeights> {
    const AttentionLayerWeights& from = model.layers[static_cast<size_t>(layer)];
    return AttentionLayerWeights{.q = CopyOf(from.q),
                                 .k = CopyOf(from.k),
                                 .v = CopyOf(from.v),
                                 .o = CopyOf(from.o),
                                 .q_bias = CopyOf(from.q_bias),
                                 .k_bias = CopyOf(from.k_bias),
                                 .v_bias = CopyOf(from.v_bias),
                                 .q_norm = CopyOf(from.q_norm),
                                 .k_norm = CopyOf(from.k_norm),
                                 .q_a = CopyOf(from.q_a),
                                 .q_b = CopyOf(from.q_b),
                                 .kv_a = CopyOf(from.kv_a),
                                 .kv_b = CopyOf(from.kv_b),
                                 .q_a_norm = CopyOf(from.q_a_norm),
                                 .kv_a_norm = CopyOf(from.kv_a_norm)};
  };
  const KvLayout layout(model.facts, kernels.pair_order);
  const int64_t block_bytes = KvCache::BlockBytes(layout, model.facts.num_layers);
  auto pipeline = AttentionPipeline::Make(model.facts, source, kernels, executor,
                                          tokens / model.facts.key_block * block_bytes, sharding);
  EXPECT_TRUE(pipeline.ok()) << pipeline.status();
  return *std::move(pipeline);
}

RowBatch<Bf16> RunStep(AttentionPipeline& pipeline, SessionId session, Bf16Rows rows, int64_t begin,
                       int64_t end, int64_t prompt_length, int64_t layer) {
  const int64_t num_rows = end - begin;
  const StepPlan plan{.sessions = {{.session = session,
                                    .num_rows = num_rows,
                                    .position_begin = begin,
                                    .prompt_length = prompt_length}},
                      .num_rows = num_rows};
  RowBatch<Bf16> out(num_rows, rows.width);
  EXPECT_TRUE(pipeline.BeginStep(plan).ok());
  EXPECT_TRUE(pipeline.RunLayer(layer, rows.Slice(begin, end), out.rows()).ok());
  EXPECT_TRUE(pipeline.CommitStep().ok());
  return out;
}

RowBatch<Bf16> RunInChunks(AttentionPipeline& pipeline, SessionId session, Bf16Rows rows,
                           int64_t chunk, int64_t prompt_length) {
  RowBatch<Bf16> out(rows.num_rows, rows.width);
  for (int64_t begin = 0; begin < rows.num_rows; begin += chunk) {
    const int64_t end = std::min(rows.num_rows, begin + chunk);
    const RowBatch<Bf16> part = RunStep(pipeline, session, rows, begin, end, prompt_length);
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(part.rows().row(r - begin), rows.width, out.rows().row(r));
    }
  }
  return out;
}

std::string FirstDifference(Bf16Rows expected, Bf16Rows found) {
  if (expected.num_rows != found.num_rows || expected.width != found.width) {
    return "shapes differ";
  }
  for (int64_t r = 0; r < expected.num_rows; ++r) {
    for (int64_t c = 0; c < expected.width; ++c) {
      if (expected.row(r)[c] == found.row(r)[c]) continue;
      return absl::StrCat("row ", r, ", column ", c, ": expected ", ToFloat(expected.row(r)[c]),
                          ", found ", ToFloat(found.row(r)[c]));
    }
  }
  return "";
}

}  // namespace moebius::testing
