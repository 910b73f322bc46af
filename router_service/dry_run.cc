// SPDX-License-Identifier: Apache-2.0
#include "router_service/dry_run.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// Tokens [begin, end) of the prompt; `next_row` walks along the rows with logits.
StepRequest BuildChunk(const DryRun& run, int64_t begin, int64_t end, size_t* next_row) {
  StepRequest request;
  request.purpose = StepPurpose::kDryRun;
  SessionRows rows;
  rows.session = kDryRunSession;
  rows.num_rows = end - begin;
  rows.position_begin = begin;
  rows.prompt_length = static_cast<int64_t>(run.token_ids.size());
  request.plan.sessions.push_back(rows);
  request.plan.num_rows = rows.num_rows;
  for (int64_t position = begin; position < end; ++position) {
    request.token_ids.push_back(static_cast<int32_t>(run.token_ids[static_cast<size_t>(position)]));
  }
  for (; *next_row < run.logit_rows.size() && run.logit_rows[*next_row] < end; ++*next_row) {
    request.logit_rows.push_back(run.logit_rows[*next_row] - begin);
  }
  return request;
}

absl::Status RunChunks(const DryRun& run, RowPipeline& pipeline, uint64_t* next_step,
                       absl::FunctionRef<void(const StepResult&)> on_step) {
  const int64_t num_tokens = static_cast<int64_t>(run.token_ids.size());
  StepResult result;
  size_t next_row = 0;
  for (int64_t begin = 0; begin < num_tokens; begin += run.chunk_rows) {
    const int64_t end = std::min(begin + run.chunk_rows, num_tokens);
    StepRequest request = BuildChunk(run, begin, end, &next_row);
    request.plan.step = (*next_step)++;
    MOEBIUS_RETURN_IF_ERROR(pipeline.RunStep(request, &result));
    if (!result.nonfinite_rows.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("the token at position ",
                                                     begin + result.nonfinite_rows.front(),
                                                     " has values that are not finite"));
    }
    on_step(result);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPrompt(absl::Span<const int64_t> token_ids, int64_t vocab_size,
                         int64_t max_tokens) {
  if (token_ids.empty()) {
    return WithHint(absl::InvalidArgumentError("the prompt has no token ids"),
                    "give a prompt, or begin with the model's BOS id");
  }
  if (static_cast<int64_t>(token_ids.size()) > max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt has ", token_ids.size(), " tokens, the limit is ", max_tokens));
  }
  for (size_t position = 0; position < token_ids.size(); ++position) {
    if (token_ids[position] < 0 || token_ids[position] >= vocab_size) {
      return WithHint(absl::InvalidArgumentError(
                          absl::StrCat("token id ", token_ids[position], " at position ", position,
                                       " is outside the vocabulary of ", vocab_size)),
                      absl::StrCat("ids run from 0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status RunDry(const DryRun& run, RowPipeline& pipeline, StepObserver& observer,
                    uint64_t* next_step, absl::FunctionRef<void(const StepResult&)> on_step) {
  MOEBIUS_CHECK_GE(run.chunk_rows, 1);
  pipeline.SetObserver(&observer);
  const absl::Status status = RunChunks(run, pipeline, next_step, on_step);
  pipeline.SetObserver(nullptr);
  pipeline.EndSession(kDryRunSession);
  return status;
}

}  // namespace moebius
