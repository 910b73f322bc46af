// SPDX-License-Identifier: Apache-2.0
#include "tests/attention_service/double_reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace moebius::testing {
namespace {

// softmax(q·k·scale)·v in fp64 for a query that sees these keys.
std::vector<double> AttendInDouble(absl::Span<const Bf16> query, Bf16Rows keys, Bf16Rows values,
                                   double scale) {
  std::vector<double> scores;
  for (int64_t j = 0; j < keys.num_rows; ++j) {
    double sum = 0;
    for (size_t i = 0; i < query.size(); ++i) {
      sum += static_cast<double>(ToFloat(query[i])) * ToFloat(keys.row(j)[i]);
    }
    scores.push_back(sum * scale);
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double denominator = 0;
  std::vector<double> out(static_cast<size_t>(values.width));
  for (int64_t j = 0; j < keys.num_rows; ++j) {
    const double weight = std::exp(scores[static_cast<size_t>(j)] - max);
    denominator += weight;
    for (size_t d = 0; d < out.size(); ++d) out[d] += weight * ToFloat(values.row(j)[d]);
  }
  for (double& element : out) element /= denominator;
  return out;
}

}  // namespace

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

HeadError CompareHeadsWithDouble(const AttentionCase& model, Bf16Rows rows, Bf16Rows found,
                                 int64_t stride, int64_t prompt_length) {
  const AttentionConfig& config = model.facts.config;
  const ReferenceProjections projected = ProjectByReference(model, rows);
  const int64_t group = config.num_query_heads / config.num_kv_heads;
  const int64_t d = config.qk_head_dim;
  const int64_t dv = config.v_head_dim;
  const int64_t prompt_end = prompt_length < 0 ? rows.num_rows : prompt_length;
  HeadError error;
  for (int64_t h = 0; h < config.num_query_heads; ++h) {
    RowBatch<Bf16> keys, values;
    Bf16Rows k = projected.keys.rows(), v = projected.values.rows();
    if (config.mla.has_value()) {
      ExpandByReference(model, h, projected.keys.rows(), keys, values);
      k = keys.rows();
      v = values.rows();
    } else {
      k = k.Columns(h / group * d, (h / group + 1) * d);
      v = v.Columns(h / group * dv, (h / group + 1) * dv);
    }
    for (int64_t t = 0; t < rows.num_rows; ++t) {
      for (const Bf16 value : v.span(t)) {
        error.max_input = std::max(error.max_input, std::abs(double{ToFloat(value)}));
      }
    }
    for (int64_t t = 0; t < rows.num_rows;
         t = t == rows.num_rows - 1 ? t + 1 : std::min(t + stride, rows.num_rows - 1)) {
      const bool sees_whole = !config.is_causal && t < prompt_end;
      const int64_t end = sees_whole ? prompt_end : t + 1;
      const int64_t window = config.WindowOf(0);
      const int64_t begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
      const std::vector<double> expected =
          AttendInDouble(projected.queries.rows().Columns(h * d, (h + 1) * d).span(t),
                         k.Slice(begin, end), v.Slice(begin, end), config.softmax_scale);
      for (int64_t i = 0; i < dv; ++i) {
        const double value = ToFloat(found.row(t)[h * dv + i]);
        const double wanted = expected[static_cast<size_t>(i)];
        error.max_error = std::max(error.max_error, std::abs(value - wanted));
        error.max_value = std::max(error.max_value, std::abs(wanted));
      }
    }
  }
  return error;
}

}  // namespace moebius::testing
