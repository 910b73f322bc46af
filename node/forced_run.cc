// SPDX-License-Identifier: Apache-2.0
#include "node/forced_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/routing/assignments.h"
#include "router_service/admission.h"
#include "router_service/dry_run.h"

namespace moebius {
namespace {

// Keeps what the gates chose, ids ascending within a token.
class GateRecorder final : public StepObserver {
 public:
  explicit GateRecorder(ForcedLogits* forced) : forced_(*forced) {}

  void OnGate(LayerId layer, FloatRows logits, const Assignments& assignments) override {
    ForcedLayer& record = RecordOf(layer);
    for (int64_t row = 0; row < logits.num_rows; ++row) {
      const absl::Span<const float> values = logits.span(row);
      record.gate_logits.insert(record.gate_logits.end(), values.begin(), values.end());
      chosen_.clear();
      for (int32_t choice = 0; choice < assignments.top_k; ++choice) {
        const size_t index = static_cast<size_t>(choice);
        chosen_.emplace_back(assignments.RowIds(row)[index], assignments.RowWeights(row)[index]);
      }
      std::sort(chosen_.begin(), chosen_.end());
      for (const auto& [id, weight] : chosen_) {
        record.experts.push_back(static_cast<int16_t>(id));
        record.weights.push_back(weight);
      }
    }
  }

 private:
  ForcedLayer& RecordOf(LayerId layer) {
    for (ForcedLayer& record : forced_.layers) {
      if (record.layer == layer.value()) return record;
    }
    ForcedLayer& record = forced_.layers.emplace_back();
    record.layer = layer.value();
    return record;
  }

  ForcedLogits& forced_;
  std::vector<std::pair<int32_t, float>> chosen_;
};

absl::Status CheckRows(absl::Span<const int64_t> rows, int64_t num_tokens) {
  int64_t previous = -1;
  for (const int64_t row : rows) {
    if (row <= previous || row >= num_tokens) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row, " is out of order or range"));
    }
    previous = row;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ForcedLogits> RunForced(const ModelConfig& config, RowPipeline& pipeline,
                                       int64_t chunk_rows, absl::Span<const int64_t> token_ids,
                                       absl::Span<const int64_t> rows) {
  MOEBIUS_RETURN_IF_ERROR(CheckPrompt(token_ids, config.vocab_size, config.max_positions));
  ForcedLogits forced;
  forced.num_tokens = static_cast<int64_t>(token_ids.size());
  if (!config.attention.is_causal) {
    MOEBIUS_RETURN_IF_ERROR(CheckFitsOneStep(forced.num_tokens, chunk_rows));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckRows(rows, forced.num_tokens));
  forced.num_experts = config.gate.num_experts;
  forced.top_k = config.gate.top_k;
  forced.rows.assign(rows.begin(), rows.end());
  for (int64_t row = 0; rows.empty() && row < forced.num_tokens; ++row) forced.rows.push_back(row);
  forced.logits.Reset(static_cast<int64_t>(forced.rows.size()), config.vocab_size);

  GateRecorder recorder(&forced);
  const DryRun run{token_ids, forced.rows, chunk_rows};
  uint64_t step = 0;
  int64_t first_row = 0;
  MOEBIUS_RETURN_IF_ERROR(
      RunDry(run, pipeline, recorder, &step, [&forced, &first_row](const StepResult& result) {
        const FloatRows logits = result.logits.rows();
        for (int64_t row = 0; row < logits.num_rows; ++row) {
          std::copy_n(logits.row(row), logits.width, forced.logits.rows().row(first_row++));
        }
      }));
  return forced;
}

}  // namespace moebius
