// SPDX-License-Identifier: Apache-2.0
#include "node/forced_run.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/status.h"
#include "moebius/routing/assignments.h"

namespace moebius {
namespace {

// No request's session: a lead counts them up from 1.
constexpr SessionId kForcedSession(std::numeric_limits<uint64_t>::max());

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

absl::Status CheckArguments(const ModelConfig& config, absl::Span<const int64_t> token_ids,
                            absl::Span<const int64_t> rows) {
  if (token_ids.empty()) return absl::InvalidArgumentError("there are no token ids");
  if (static_cast<int64_t>(token_ids.size()) > config.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", token_ids.size(),
                                                   " tokens, the limit is ", config.max_positions));
  }
  for (size_t position = 0; position < token_ids.size(); ++position) {
    if (token_ids[position] < 0 || token_ids[position] >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token_ids[position], " at position ", position,
                       " is outside the vocabulary of ", config.vocab_size));
    }
  }
  int64_t previous = -1;
  for (const int64_t row : rows) {
    if (row <= previous || row >= static_cast<int64_t>(token_ids.size())) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row, " is out of order or range"));
    }
    previous = row;
  }
  return absl::OkStatus();
}

// Tokens [begin, end) of the prompt; `next_row` walks along the kept rows.
StepRequest BuildChunk(absl::Span<const int64_t> token_ids, int64_t begin, int64_t end,
                       absl::Span<const int64_t> kept, size_t* next_row) {
  StepRequest request;
  SessionRows rows;
  rows.session = kForcedSession;
  rows.num_rows = end - begin;
  rows.position_begin = begin;
  rows.prompt_length = static_cast<int64_t>(token_ids.size());
  request.plan.sessions.push_back(rows);
  request.plan.num_rows = rows.num_rows;
  for (int64_t position = begin; position < end; ++position) {
    request.token_ids.push_back(static_cast<int32_t>(token_ids[static_cast<size_t>(position)]));
  }
  for (; *next_row < kept.size() && kept[*next_row] < end; ++*next_row) {
    request.logit_rows.push_back(kept[*next_row] - begin);
  }
  return request;
}

absl::Status RunChunks(RowPipeline& pipeline, int64_t chunk_rows,
                       absl::Span<const int64_t> token_ids, ForcedLogits* forced) {
  StepResult result;
  size_t next_row = 0;
  for (int64_t begin = 0; begin < forced->num_tokens; begin += chunk_rows) {
    const int64_t end = std::min(begin + chunk_rows, forced->num_tokens);
    const int64_t first_row = static_cast<int64_t>(next_row);
    const StepRequest request = BuildChunk(token_ids, begin, end, forced->rows, &next_row);
    MOEBIUS_RETURN_IF_ERROR(pipeline.RunStep(request, &result));
    if (!result.nonfinite_rows.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the token at position ",
                                                     begin + result.nonfinite_rows.front(),
                                                     " has values that are not finite"));
    }
    for (int64_t row = 0; row < result.logits.num_rows(); ++row) {
      const absl::Span<const float> logits = FloatRows(result.logits.rows()).span(row);
      std::copy(logits.begin(), logits.end(), forced->logits.rows().row(first_row + row));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ForcedLogits> RunForced(const ModelConfig& config, RowPipeline& pipeline,
                                       int64_t chunk_rows, absl::Span<const int64_t> token_ids,
                                       absl::Span<const int64_t> rows) {
  MOEBIUS_CHECK_GE(chunk_rows, 1);
  MOEBIUS_RETURN_IF_ERROR(CheckArguments(config, token_ids, rows));
  ForcedLogits forced;
  forced.num_tokens = static_cast<int64_t>(token_ids.size());
  forced.num_experts = config.gate.num_experts;
  forced.top_k = config.gate.top_k;
  forced.rows.assign(rows.begin(), rows.end());
  for (int64_t row = 0; rows.empty() && row < forced.num_tokens; ++row) forced.rows.push_back(row);
  forced.logits.Reset(static_cast<int64_t>(forced.rows.size()), config.vocab_size);

  GateRecorder recorder(&forced);
  pipeline.SetObserver(&recorder);
  const absl::Status status = RunChunks(pipeline, chunk_rows, token_ids, &forced);
  pipeline.SetObserver(nullptr);
  pipeline.EndSession(kForcedSession);
  if (!status.ok()) return status;
  return forced;
}

}  // namespace moebius
