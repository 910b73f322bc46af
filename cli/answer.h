// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/backend.h"

#include "moebius/api/generate.h"
#include "moebius/model/tokenizer.h"

namespace moebius {

/// An answer put together from its events.
class Answer {
 public:
  /// `tokenizer` may be null: there is no text then.
  explicit Answer(const Tokenizer* tokenizer);

  /// Adds an event and returns the text that became certain: whole characters only.
  std::string Add(const GenerateEvent& event);

  const std::string& text() const { return text_; }
  const std::vector<int64_t>& token_ids() const { return token_ids_; }
  const std::vector<PositionLogprobs>& logprobs() const { return logprobs_; }
  /// The last event that came.
  const GenerateEvent& last() const { return last_; }

 private:
  std::unique_ptr<StreamingDecoder> decoder_;
  std::string text_;
  std::vector<int64_t> token_ids_;
  std::vector<PositionLogprobs> logprobs_;
  GenerateEvent last_;
};

/// The object of `generate --json`, one line.
std::string FormatAnswerJson(const Answer& answer, const AnswerOrigin& origin);

/// "26 + 64 tokens   prefill 5,210 tok/s   decode 412 tok/s   avx2, 2 threads, seed 7".
std::string FormatClosingLine(const Answer& answer, const AnswerOrigin& origin);

/// "ring-pass-kv" and others: how attention ranks shared the prompt. Empty with one rank.
std::vector<absl::string_view> AttentionMethodNames(const StepFigures& figures);

/// "tokens a41c7e02  logits 9be1f07d55c2a316   exact: yes   stop: eos 257".
std::string FormatHashLine(const Answer& answer);

/// Where the time of a token went, as bars; for --verbose. Empty without decode steps.
std::string FormatTimeLines(const Answer& answer, const AnswerOrigin& origin);

/// "1,068 messages, 412.0 KB out, 398.1 KB back …": what the answer's steps sent over the network,
/// beside a protocol that asks each expert by itself. Empty where nothing was sent.
std::string FormatTraffic(const StepFigures& figures);

/// Chosen tokens with their logarithms and the best candidates, a line each.
std::string FormatLogprobLines(const Answer& answer, const Tokenizer* tokenizer);

}  // namespace moebius
