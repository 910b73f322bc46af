// SPDX-License-Identifier: Apache-2.0
#include "cli/answer_json.h"

#include <utility>
#include <vector>

#include "cli/answer.h"

namespace moebius {

Json ExactnessJson(const Exactness& exactness) {
  std::vector<Json> missing;
  for (const auto& [layer, expert] : exactness.missing_experts) {
    missing.push_back(Json::Array({Json::Integer(layer), Json::Integer(expert)}));
  }
  std::vector<Json> reasons;
  for (const std::string& reason : exactness.reasons) reasons.push_back(Json::String(reason));
  Json json = Json::Object({});
  json.Set("exact", Json::Boolean(exactness.exact()));
  json.Set("dropped", Json::Integer(exactness.dropped));
  json.Set("rerouted", Json::Integer(exactness.rerouted));
  json.Set("missing_experts", Json::Array(std::move(missing)));
  json.Set("bias_override", Json::Boolean(exactness.bias_override));
  json.Set("reasons", Json::Array(std::move(reasons)));
  return json;
}

Json TrafficJson(const PortTraffic& traffic) {
  Json json = Json::Object({});
  json.Set("messages", Json::Integer(traffic.messages));
  json.Set("bytes_out", Json::Integer(traffic.bytes_out));
  json.Set("bytes_back", Json::Integer(traffic.bytes_back));
  return json;
}

Json TimingJson(const GenerateTiming& timing) {
  Json json = Json::Object({});
  json.Set("queue_seconds", Json::Number(timing.queue_seconds));
  json.Set("prefill_seconds", Json::Number(timing.prefill_seconds));
  json.Set("decode_seconds", Json::Number(timing.decode_seconds));
  json.Set("prefill_steps", Json::Integer(timing.prefill_steps));
  json.Set("decode_steps", Json::Integer(timing.decode_steps));
  const StepFigures& figures = timing.figures;
  json.Set("attention_seconds", Json::Number(figures.attention_seconds));
  json.Set("expert_seconds", Json::Number(figures.expert_seconds));
  json.Set("gate_seconds", Json::Number(figures.gate_seconds + figures.plan_seconds));
  json.Set("combine_seconds", Json::Number(figures.combine_seconds));
  json.Set("head_seconds", Json::Number(figures.head_seconds));
  json.Set("other_seconds", Json::Number(figures.norm_seconds + figures.embed_seconds));
  json.Set("stall_seconds", Json::Number(figures.stall_seconds));
  json.Set("assignments", Json::Integer(figures.assignments));
  json.Set("dropped", Json::Integer(figures.dropped));
  json.Set("dispatched_rows", Json::Integer(figures.dispatched_rows));
  json.Set("reply_rows", Json::Integer(figures.reply_rows));
  json.Set("resends", Json::Integer(figures.resends));
  json.Set("resent_rows", Json::Integer(figures.resent_rows));
  json.Set("attention_traffic", TrafficJson(figures.attention_traffic));
  json.Set("expert_traffic", TrafficJson(figures.expert_traffic));
  json.Set("naive_messages", Json::Integer(figures.naive_messages));
  json.Set("naive_bytes", Json::Integer(figures.naive_bytes));
  std::vector<Json> methods;
  for (const absl::string_view name : AttentionMethodNames(figures)) {
    methods.push_back(Json::String(name));
  }
  json.Set("attention_methods", Json::Array(std::move(methods)));
  return json;
}

}  // namespace moebius
