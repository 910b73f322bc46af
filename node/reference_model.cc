// SPDX-License-Identifier: Apache-2.0
#include "node/reference_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// Tokens of one task in everything but attention.
constexpr int64_t kTokenTile = 16;

// Reads the parameters of one layer, or of the model at layer -1.
class WeightReader {
 public:
  WeightReader(const Checkpoint& checkpoint, int32_t layer)
      : checkpoint_(checkpoint), layer_(layer) {}

  absl::Status Read(Part part, std::vector<float>& out, int32_t expert = -1) const {
    const ParameterKey key{part, layer_, expert};
    if (!checkpoint_.Has(key)) return absl::OkStatus();
    MOEBIUS_ASSIGN_OR_RETURN(const RowBatch<float> values, checkpoint_.LoadFloat(key));
    const absl::Span<const float> row = values.rows().span(0);
    out.assign(row.begin(), row.end());
    return absl::OkStatus();
  }

  absl::Status Read(Part part, ReferenceLinear& out, int32_t expert = -1,
                    absl::Span<const float> bias = {}) const {
    const ParameterKey key{part, layer_, expert};
    if (!checkpoint_.Has(key)) return absl::OkStatus();
    MOEBIUS_ASSIGN_OR_RETURN(const RowBatch<float> weight, checkpoint_.LoadFloat(key));
    out = ReferenceLinear(weight.rows(), bias);
    return absl::OkStatus();
  }

  absl::Status ReadBiased(Part part, Part bias_part, ReferenceLinear& out) const {
    std::vector<float> bias;
    MOEBIUS_RETURN_IF_ERROR(Read(bias_part, bias));
    return Read(part, out, -1, bias);
  }

  absl::Status Read(Part gate, Part up, Part down, ReferenceFfn& out, int32_t expert = -1) const {
    MOEBIUS_RETURN_IF_ERROR(Read(gate, out.gate, expert));
    MOEBIUS_RETURN_IF_ERROR(Read(up, out.up, expert));
    return Read(down, out.down, expert);
  }

 private:
  const Checkpoint& checkpoint_;
  int32_t layer_;
};

absl::Status ReadAttention(const WeightReader& reader, ReferenceAttentionWeights& out) {
  MOEBIUS_RETURN_IF_ERROR(reader.ReadBiased(Part::kQ, Part::kQBias, out.q));
  MOEBIUS_RETURN_IF_ERROR(reader.ReadBiased(Part::kK, Part::kKBias, out.k));
  MOEBIUS_RETURN_IF_ERROR(reader.ReadBiased(Part::kV, Part::kVBias, out.v));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kO, out.output));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kQNorm, out.q_norm));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kKNorm, out.k_norm));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kQA, out.q_a));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kQANorm, out.q_a_norm));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kQB, out.q_b));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kKvA, out.kv_a));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kKvANorm, out.kv_a_norm));
  return reader.Read(Part::kKvB, out.kv_b);
}

absl::Status ReadFfn(const WeightReader& reader, const ModelConfig& config, bool is_moe,
                     ReferenceFfnWeights& out) {
  if (!is_moe) {
    return reader.Read(Part::kDenseGate, Part::kDenseUp, Part::kDenseDown, out.dense.emplace());
  }
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kGate, out.gate));
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kCorrectionBias, out.correction_bias));
  if (config.num_shared_experts > 0) {
    MOEBIUS_RETURN_IF_ERROR(
        reader.Read(Part::kSharedGate, Part::kSharedUp, Part::kSharedDown, out.shared.emplace()));
  }
  out.experts.resize(static_cast<size_t>(config.gate.num_experts));
  for (int32_t expert = 0; expert < config.gate.num_experts; ++expert) {
    MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kExpertGate, Part::kExpertUp, Part::kExpertDown,
                                        out.experts[static_cast<size_t>(expert)], expert));
  }
  return absl::OkStatus();
}

// Calls body(begin, end) for tiles of [0, num_rows) on the executor's threads.
void ForTiles(Executor& executor, int64_t num_rows,
              absl::FunctionRef<void(int64_t begin, int64_t end)> body) {
  executor.ParallelFor((num_rows + kTokenTile - 1) / kTokenTile, [&](int64_t tile, int) {
    body(tile * kTokenTile, std::min((tile + 1) * kTokenTile, num_rows));
  });
}

RowBatch<float> NormalizeRows(FloatRows rows, absl::Span<const float> weight, double eps) {
  RowBatch<float> normed(rows.num_rows, rows.width);
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    ReferenceRmsNorm(rows.span(row), weight, eps, normed.rows().span(row));
  }
  return normed;
}

void AddRows(FloatRows rows, MutableFloatRows sums) {
  for (int64_t row = 0; row < rows.num_rows; ++row) {
    for (int64_t i = 0; i < rows.width; ++i) sums.row(row)[i] += rows.row(row)[i];
  }
}

// The index of the first value that is not finite, or -1.
int64_t FirstNotFinite(absl::Span<const float> values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  return found == values.end() ? -1 : found - values.begin();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ReferenceModel>> ReferenceModel::Load(
    const Checkpoint& checkpoint) {
  std::unique_ptr<ReferenceModel> model(new ReferenceModel());
  const ModelConfig& config = checkpoint.config();
  model->config_ = config;
  model->group_fill_ = checkpoint.numerics().group_fill;
  model->rope_ = ReferenceRope(config.attention.rope, config.attention.rope_amplitude);
  MOEBIUS_ASSIGN_OR_RETURN(model->embedding_, checkpoint.LoadFloat({Part::kEmbedding}));
  const WeightReader reader(checkpoint, -1);
  MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kFinalNorm, model->final_norm_));
  if (config.tied_head) {
    model->head_ = ReferenceLinear(model->embedding());
  } else {
    MOEBIUS_RETURN_IF_ERROR(reader.Read(Part::kHead, model->head_));
  }
  model->layers_.resize(static_cast<size_t>(config.num_layers));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    ReferenceLayer& weights = model->layers_[static_cast<size_t>(layer)];
    const WeightReader layer_reader(checkpoint, layer);
    MOEBIUS_RETURN_IF_ERROR(layer_reader.Read(Part::kAttentionNorm, weights.attention_norm));
    MOEBIUS_RETURN_IF_ERROR(ReadAttention(layer_reader, weights.attention));
    MOEBIUS_RETURN_IF_ERROR(layer_reader.Read(Part::kFfnNorm, weights.ffn_norm));
    MOEBIUS_RETURN_IF_ERROR(ReadFfn(layer_reader, config, config.IsMoeLayer(layer), weights.ffn));
  }
  return model;
}

ReferenceSequence::ReferenceSequence(const ReferenceModel& model, Executor& executor)
    : model_(model), executor_(executor) {
  for (size_t layer = 0; layer < model.layers().size(); ++layer) {
    caches_.emplace_back(model.config().attention);
  }
}

absl::Status ReferenceSequence::Validate(absl::Span<const int64_t> token_ids,
                                         absl::Span<const int64_t> rows) const {
  const ModelConfig& config = model_.config();
  const int64_t num_new = static_cast<int64_t>(token_ids.size());
  for (size_t i = 0; i < token_ids.size(); ++i) {
    if (token_ids[i] < 0 || token_ids[i] >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "token %d is %d, outside the vocabulary of %d ids", i, token_ids[i], config.vocab_size));
    }
  }
  if (num_tokens_ + num_new > config.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tokens are more than the model's %d positions", num_tokens_ + num_new,
                        config.max_positions));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= num_new || (i > 0 && rows[i] <= rows[i - 1])) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "row %d is not an ascending index below the %d tokens given", rows[i], num_new));
    }
  }
  return absl::OkStatus();
}

void ReferenceSequence::RunAttention(size_t layer, MutableFloatRows residual) {
  const ModelConfig& config = model_.config();
  const AttentionConfig& attention = config.attention;
  const ReferenceLayer& weights = model_.layers()[layer];
  ReferenceKvCache& cache = caches_[layer];
  cache.Grow(num_tokens_ + residual.num_rows);
  RowBatch<float> queries(residual.num_rows,
                          int64_t{attention.num_query_heads} * attention.qk_head_dim);
  ForTiles(executor_, residual.num_rows, [&](int64_t begin, int64_t end) {
    const RowBatch<float> normed =
        NormalizeRows(residual.Slice(begin, end), weights.attention_norm, config.rms_norm_eps);
    ProjectReferenceAttention(attention, weights.attention, model_.rope(), normed.rows(),
                              num_tokens_ + begin, queries.rows().Slice(begin, end), cache);
  });
  RowBatch<float> attended(residual.num_rows,
                           int64_t{attention.num_query_heads} * attention.v_head_dim);
  // What comes first is the prompt.
  const bool sees_all = !attention.is_causal && num_tokens_ == 0;
  AttendReference(executor_, attention, cache, num_tokens_, sees_all ? residual.num_rows : 0,
                  attention.WindowOf(static_cast<int64_t>(layer)), queries.rows(), attended.rows());
  ForTiles(executor_, residual.num_rows, [&](int64_t begin, int64_t end) {
    RowBatch<float> output(end - begin, residual.width);
    weights.attention.output.Apply(attended.rows().Slice(begin, end), output.rows());
    AddRows(output.rows(), residual.Slice(begin, end));
  });
}

void ReferenceSequence::RunFfn(size_t layer, MutableFloatRows residual, ForcedLogits& forced) {
  const ModelConfig& config = model_.config();
  const ReferenceLayer& weights = model_.layers()[layer];
  ReferenceChoices all;
  if (!weights.ffn.dense.has_value()) {
    const int64_t num_rows = residual.num_rows;
    const int64_t num_experts = config.gate.num_experts, top_k = config.gate.top_k;
    ForcedLayer& kept = forced.layers.emplace_back();
    kept.layer = static_cast<int64_t>(layer);
    kept.experts.resize(static_cast<size_t>(num_rows * top_k));
    kept.weights.resize(static_cast<size_t>(num_rows * top_k));
    kept.gate_logits.resize(static_cast<size_t>(num_rows * num_experts));
    all.experts = Rows<int16_t>(kept.experts.data(), num_rows, top_k);
    all.weights = Rows<float>(kept.weights.data(), num_rows, top_k);
    all.gate_logits = Rows<float>(kept.gate_logits.data(), num_rows, num_experts);
  }
  ForTiles(executor_, residual.num_rows, [&](int64_t begin, int64_t end) {
    const RowBatch<float> normed =
        NormalizeRows(residual.Slice(begin, end), weights.ffn_norm, config.rms_norm_eps);
    ReferenceChoices choices;
    if (!weights.ffn.dense.has_value()) {
      choices = {all.gate_logits.Slice(begin, end), all.experts.Slice(begin, end),
                 all.weights.Slice(begin, end)};
    }
    RowBatch<float> output(end - begin, residual.width);
    ApplyReferenceFfn(config.gate, model_.group_fill(), weights.ffn, normed.rows(), choices,
                      output.rows());
    AddRows(output.rows(), residual.Slice(begin, end));
  });
}

void ReferenceSequence::RunHead(FloatRows residual, ForcedLogits& forced) {
  const ModelConfig& config = model_.config();
  const int64_t num_rows = static_cast<int64_t>(forced.rows.size());
  forced.logits.Reset(num_rows, config.vocab_size);
  ForTiles(executor_, num_rows, [&](int64_t begin, int64_t end) {
    RowBatch<float> normed(end - begin, residual.width);
    for (int64_t row = begin; row < end; ++row) {
      ReferenceRmsNorm(residual.span(forced.rows[static_cast<size_t>(row)]), model_.final_norm(),
                       config.rms_norm_eps, normed.rows().span(row - begin));
    }
    model_.head().Apply(normed.rows(), forced.logits.rows().Slice(begin, end));
  });
}

absl::StatusOr<ForcedLogits> ReferenceSequence::Append(absl::Span<const int64_t> token_ids,
                                                       absl::Span<const int64_t> rows) {
  MOEBIUS_RETURN_IF_ERROR(Validate(token_ids, rows));
  ForcedLogits forced;
  forced.num_tokens = static_cast<int64_t>(token_ids.size());
  forced.num_experts = model_.config().gate.num_experts;
  forced.top_k = model_.config().gate.top_k;
  forced.rows.assign(rows.begin(), rows.end());
  if (rows.empty()) {
    forced.rows.resize(token_ids.size());
    std::iota(forced.rows.begin(), forced.rows.end(), 0);
  }
  executor_.Run([&] {
    RowBatch<float> residual(forced.num_tokens, model_.config().hidden_size);
    for (int64_t row = 0; row < forced.num_tokens; ++row) {
      const absl::Span<const float> source =
          model_.embedding().span(token_ids[static_cast<size_t>(row)]);
      std::copy(source.begin(), source.end(), residual.rows().row(row));
    }
    for (size_t layer = 0; layer < model_.layers().size(); ++layer) {
      RunAttention(layer, residual.rows());
      RunFfn(layer, residual.rows(), forced);
    }
    RunHead(residual.rows(), forced);
  });
  num_tokens_ += forced.num_tokens;
  for (const ForcedLayer& layer : forced.layers) {
    const int64_t index = FirstNotFinite(layer.gate_logits);
    if (index >= 0) {
      return absl::DataLossError(
          absl::StrFormat("layer %d: the gate's logits of token %d are not "
                          "finite",
                          layer.layer, index / forced.num_experts));
    }
  }
  return forced;
}

absl::StatusOr<std::vector<int64_t>> ReferenceSequence::ContinueGreedily(
    absl::Span<const int64_t> token_ids, int64_t num_tokens) {
  std::vector<int64_t> next(token_ids.begin(), token_ids.end());
  std::vector<int64_t> generated;
  while (static_cast<int64_t>(generated.size()) < num_tokens) {
    const int64_t last_row = static_cast<int64_t>(next.size()) - 1;
    MOEBIUS_ASSIGN_OR_RETURN(const ForcedLogits forced,
                             Append(next, absl::MakeConstSpan(&last_row, 1)));
    generated.push_back(MostLikelyToken(forced.logits.rows().span(0)));
    next = {generated.back()};
  }
  return generated;
}

int64_t MostLikelyToken(absl::Span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

absl::StatusOr<ForcedLogits> ForwardReference(const ReferenceModel& model, Executor& executor,
                                              absl::Span<const int64_t> token_ids,
                                              absl::Span<const int64_t> rows) {
  ReferenceSequence sequence(model, executor);
  return sequence.Append(token_ids, rows);
}

}  // namespace moebius
