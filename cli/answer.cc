// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/answer_json.h"
#include "cli/terminal.h"

#include "moebius/attention/attention_method.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

Json IdsJson(const std::vector<int64_t>& ids) {
  std::vector<Json> elements;
  elements.reserve(ids.size());
  for (const int64_t id : ids) elements.push_back(Json::Integer(id));
  return Json::Array(std::move(elements));
}

Json UnsignedJson(uint64_t value) {
  return value >> 63 == 0 ? Json::Integer(static_cast<int64_t>(value)) : Json::LargeInteger(value);
}

Json LogprobJson(const RankedToken& entry) {
  Json json = Json::Object({});
  json.Set("token_id", Json::Integer(entry.token_id));
  json.Set("logprob", Json::Number(entry.logprob));
  return json;
}

Json LogprobsJson(const std::vector<PositionLogprobs>& positions) {
  std::vector<Json> elements;
  for (const PositionLogprobs& position : positions) {
    std::vector<Json> top;
    for (const RankedToken& candidate : position.top) top.push_back(LogprobJson(candidate));
    Json element = LogprobJson(position.chosen);
    element.Set("top", Json::Array(std::move(top)));
    elements.push_back(std::move(element));
  }
  return Json::Array(std::move(elements));
}

std::string Describe(const Tokenizer* tokenizer, int64_t token_id) {
  return tokenizer == nullptr ? std::string() : tokenizer->Describe(token_id);
}

}  // namespace

Answer::Answer(const Tokenizer* tokenizer)
    : decoder_(tokenizer == nullptr ? nullptr : tokenizer->MakeDecoder()) {}

std::string Answer::Add(const GenerateEvent& event) {
  std::string text;
  for (const int64_t id : event.token_ids) {
    token_ids_.push_back(id);
    if (decoder_ != nullptr) text += decoder_->Append(id);
  }
  if (event.finished && decoder_ != nullptr) text += decoder_->Finish();
  text_ += text;
  logprobs_.insert(logprobs_.end(), event.logprobs.begin(), event.logprobs.end());
  last_ = event;
  return text;
}

std::string FormatAnswerJson(const Answer& answer, const AnswerOrigin& origin) {
  const GenerateEvent& last = answer.last();
  Json json = Json::Object({});
  json.Set("request_id", Json::String(last.request_id));
  json.Set("text", Json::String(answer.text()));
  json.Set("token_ids", IdsJson(answer.token_ids()));
  json.Set("prompt_tokens", Json::Integer(last.prompt_tokens));
  json.Set("cached_tokens", Json::Integer(last.cached_tokens));
  json.Set("completion_tokens", Json::Integer(last.completion_tokens));
  json.Set("finish_reason", Json::String(FinishReasonName(last.finish_reason)));
  Json matched_stop;
  if (!last.matched_stop.empty()) matched_stop = Json::String(last.matched_stop);
  json.Set("matched_stop", std::move(matched_stop));
  json.Set("seed", UnsignedJson(last.sampling.seed));
  json.Set("temperature", Json::Number(last.sampling.temperature));
  json.Set("top_p", Json::Number(last.sampling.top_p));
  json.Set("top_k", Json::Integer(last.sampling.top_k));
  json.Set("max_tokens", Json::Integer(last.max_tokens));
  json.Set("logits_hash", Json::String(last.logits_hash));
  json.Set("tokens_hash", Json::String(last.tokens_hash));
  json.Set("config_hash", Json::String(origin.config_hash));
  json.Set("exactness", ExactnessJson(last.exactness));
  json.Set("timing", TimingJson(last.timing));
  json.Set("tier", Json::String(origin.tier));
  json.Set("threads", Json::Integer(origin.num_threads));
  if (!answer.logprobs().empty()) json.Set("logprobs", LogprobsJson(answer.logprobs()));
  return json.ToCanonicalText();
}

std::vector<absl::string_view> AttentionMethodNames(const StepFigures& figures) {
  std::vector<absl::string_view> names;
  for (const AttentionMethod method : kAttentionMethods) {
    if ((figures.attention_methods >> static_cast<int>(method) & 1) == 0) continue;
    names.push_back(AttentionMethodName(method));
  }
  return names;
}

std::string FormatClosingLine(const Answer& answer, const AnswerOrigin& origin) {
  const GenerateEvent& last = answer.last();
  const GenerateTiming& timing = last.timing;
  std::string line = absl::StrCat(FormatCount(last.prompt_tokens), " + ",
                                  FormatCount(last.completion_tokens), " tokens");
  if (timing.prefill_seconds > 0) {
    absl::StrAppend(&line, "   prefill ",
                    FormatRate(static_cast<double>(last.prompt_tokens) / timing.prefill_seconds),
                    " tok/s");
  }
  // The first token belongs to the prefill.
  if (last.completion_tokens > 1 && timing.decode_seconds > 0) {
    absl::StrAppend(
        &line, "   decode ",
        FormatRate(static_cast<double>(last.completion_tokens - 1) / timing.decode_seconds),
        " tok/s");
  }
  if (const auto methods = AttentionMethodNames(timing.figures); !methods.empty()) {
    absl::StrAppend(&line, "   attention ", absl::StrJoin(methods, ", "));
  }
  absl::StrAppend(&line, "   ", origin.tier, ", ", origin.num_threads,
                  origin.num_threads == 1 ? " thread" : " threads", ", seed ", last.sampling.seed);
  return line;
}

std::string FormatHashLine(const Answer& answer) {
  const GenerateEvent& last = answer.last();
  std::string line = absl::StrCat("tokens ", last.tokens_hash, "  logits ", last.logits_hash,
                                  "   exact: ", last.exactness.exact() ? "yes" : "no");
  if (!last.exactness.exact()) {
    absl::StrAppend(&line, " (", absl::StrJoin(last.exactness.reasons, "; "), ")");
  }
  absl::StrAppend(&line, "   ended by ", FinishReasonName(last.finish_reason));
  if (!last.matched_stop.empty()) absl::StrAppend(&line, " (", last.matched_stop, ")");
  return line;
}

std::string FormatTraffic(const StepFigures& figures) {
  const auto words = [](const PortTraffic& traffic) {
    return absl::StrCat(FormatCount(traffic.messages), " messages, ",
                        FormatBytes(traffic.bytes_out), " out, ", FormatBytes(traffic.bytes_back),
                        " back");
  };
  if (figures.attention_traffic.messages + figures.expert_traffic.messages == 0) return "";
  return absl::StrCat("attention ", words(figures.attention_traffic), "; experts ",
                      words(figures.expert_traffic),
                      " (one message per expert: ", FormatCount(figures.naive_messages), ", ",
                      FormatBytes(figures.naive_bytes), " each way)");
}

std::string FormatTimeLines(const Answer& answer, const AnswerOrigin& origin) {
  const GenerateTiming& timing = answer.last().timing;
  const StepFigures& figures = timing.figures;
  const double total = timing.prefill_seconds + timing.decode_seconds;
  const int64_t steps = timing.prefill_steps + timing.decode_steps;
  if (steps == 0 || total <= 0) return "";
  const double named = figures.attention_seconds + figures.expert_seconds + figures.gate_seconds +
                       figures.plan_seconds + figures.combine_seconds + figures.head_seconds +
                       figures.norm_seconds + figures.embed_seconds;
  const std::pair<const char*, double> phases[] = {
      {"attention", figures.attention_seconds},
      {"experts", figures.expert_seconds},
      {"gate+plan", figures.gate_seconds + figures.plan_seconds},
      {"combine", figures.combine_seconds},
      {"norms", figures.norm_seconds + figures.embed_seconds},
      {"head", figures.head_seconds},
      {"sample+rest", std::max(0.0, total - named)},
  };
  std::string lines = absl::StrFormat(
      "Where the answer's %.1f ms went, %d steps (%d of prefill, %d of decode), %s rows\n",
      total * 1e3, steps, timing.prefill_steps, timing.decode_steps, FormatCount(figures.num_rows));
  for (const auto& [name, seconds] : phases) {
    absl::StrAppendFormat(&lines, "  %-12s %s %5.1f %%  %8.3f ms a step\n", name,
                          DrawBar(seconds / total, 20), 100 * seconds / total,
                          seconds * 1e3 / static_cast<double>(steps));
  }
  absl::StrAppend(&lines, "  ", FormatCount(figures.assignments),
                  " assignments routed = ", FormatCount(figures.combined), " combined + ",
                  FormatCount(figures.dropped), " dropped (",
                  origin.capacity.empty() ? "dropless: no capacity set" : origin.capacity, ")\n");
  absl::StrAppend(&lines, "  ", FormatCount(figures.dispatched_rows), " rows to experts, ",
                  FormatCount(figures.reply_rows), " back");
  if (figures.resends > 0) {
    absl::StrAppendFormat(&lines, "; %s sent again in %s rounds, %.1f ms",
                          FormatCount(figures.resent_rows), FormatCount(figures.resends),
                          figures.stall_seconds * 1e3);
  }
  lines += "\n";
  const std::string traffic = FormatTraffic(figures);
  if (!traffic.empty()) absl::StrAppend(&lines, "  ", traffic, "\n");
  return lines;
}

std::string FormatLogprobLines(const Answer& answer, const Tokenizer* tokenizer) {
  std::string lines;
  for (const PositionLogprobs& position : answer.logprobs()) {
    absl::StrAppendFormat(&lines, "%8d %-8s %9.4f  ", position.chosen.token_id,
                          Describe(tokenizer, position.chosen.token_id), position.chosen.logprob);
    for (const RankedToken& candidate : position.top) {
      absl::StrAppendFormat(&lines, "  %d %s %.4f", candidate.token_id,
                            Describe(tokenizer, candidate.token_id), candidate.logprob);
    }
    lines += "\n";
  }
  return lines;
}

}  // namespace moebius
