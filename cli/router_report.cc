// SPDX-License-Identifier: Apache-2.0
// What `moebius status` and `moebius explain` print.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/answer.h"
#include "cli/answer_json.h"
#include "cli/error_output.h"
#include "cli/router_commands.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

// "14 min", "3.2 s", "5 h 12 min".
std::string FormatAge(double seconds) {
  if (seconds < 100) return absl::StrFormat("%.1f s", seconds);
  const int64_t minutes = static_cast<int64_t>(seconds / 60);
  if (minutes < 100) return absl::StrCat(minutes, " min");
  return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
}

// Rows of cells as aligned columns, two spaces apart and two in front.
std::string FormatColumns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<int> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t cell = 0; cell < row.size(); ++cell) {
      widths[cell] = std::max(widths[cell], DisplayWidth(row[cell]));
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t cell = 0; cell < row.size(); ++cell) {
      const int padding = widths[cell] - DisplayWidth(row[cell]);
      absl::StrAppend(&line, " ", row[cell],
                      std::string(static_cast<size_t>(std::max(0, padding)) + 1, ' '));
    }
    while (line.back() == ' ') line.pop_back();
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string FormatServices(const ServerInfo& server) {
  std::vector<std::vector<std::string>> rows = {{"service", "role", "state", "address", ""}};
  for (const ServiceState& service : server.services) {
    rows.push_back({EscapeControls(service.name), service.role, service.state,
                    service.address.empty() ? "–" : EscapeControls(service.address),
                    EscapeControls(service.detail)});
  }
  return FormatColumns(rows);
}

Json IdsJson(const std::vector<int64_t>& ids) {
  std::vector<Json> elements;
  for (const int64_t id : ids) elements.push_back(Json::Integer(id));
  return Json::Array(std::move(elements));
}

Json WordsJson(const std::vector<std::string>& words) {
  std::vector<Json> elements;
  for (const std::string& word : words) elements.push_back(Json::String(word));
  return Json::Array(std::move(elements));
}

Json ModelJson(const ModelInfo& model) {
  Json json = Json::Object({});
  json.Set("name", Json::String(model.name));
  json.Set("architecture", Json::String(model.architecture));
  json.Set("vocab_size", Json::Integer(model.vocab_size));
  json.Set("hidden_size", Json::Integer(model.hidden_size));
  json.Set("num_layers", Json::Integer(model.num_layers));
  json.Set("num_experts", Json::Integer(model.num_experts));
  json.Set("top_k", Json::Integer(model.top_k));
  json.Set("eos_token_ids", IdsJson(model.eos_token_ids));
  json.Set("config_hash", Json::String(model.config_hash));
  json.Set("model_hash", Json::String(model.model_hash));
  json.Set("numeric_class", Json::String(model.numeric_class));
  return json;
}

Json ServiceJson(const ServiceState& service) {
  Json json = Json::Object({});
  json.Set("name", Json::String(service.name));
  json.Set("role", Json::String(service.role));
  json.Set("state", Json::String(service.state));
  json.Set("address", Json::String(service.address));
  json.Set("detail", Json::String(service.detail));
  json.Set("http_address", Json::String(service.http_address));
  return json;
}

absl::string_view StateName(RequestState state) {
  switch (state) {
    case RequestState::kQueued:
      return "queued";
    case RequestState::kRunning:
      return "running";
    case RequestState::kFinished:
      return "finished";
    case RequestState::kFailed:
      return "failed";
  }
  return "?";
}

}  // namespace

std::string FormatStatus(absl::string_view target, const ModelInfo& model, const ServerInfo& server,
                         bool with_limits) {
  std::string out = absl::StrCat(
      target, "   ", EscapeControls(model.name), " (", EscapeControls(model.architecture),
      ")   config ", EscapeControls(model.config_hash), "   up ", FormatAge(server.uptime_seconds),
      "   epoch ", server.epoch, "   ", server.ready ? "ready" : "NOT READY", "\n");
  for (const std::string& what : server.missing) {
    absl::StrAppend(&out, " ! ", EscapeControls(what), "\n");
  }
  for (const std::string& warning : server.warnings) {
    absl::StrAppend(&out, " ! warning: ", EscapeControls(warning), "\n");
  }
  absl::StrAppend(
      &out, "requests ", FormatCount(server.running_requests), " running, ",
      FormatCount(server.queued_requests), " queued, ", FormatCount(server.rejected_total),
      " rejected, ", FormatCount(server.failed_total), " failed, ",
      FormatCount(server.cancelled_total), " cancelled of ", FormatCount(server.requests_total),
      "\n", "KV ", FormatCount(server.kv_reserved_tokens), " of ",
      FormatCount(server.kv_capacity_tokens), " tokens set aside\n", "router ",
      EscapeControls(server.version), ", ", EscapeControls(server.topology), ", ",
      EscapeControls(server.tier), ", ", server.threads,
      server.threads == 1 ? " thread\n" : " threads\n", FormatServices(server));
  if (!with_limits) return out;
  std::vector<std::vector<std::string>> rows = {{"limit", "value", "beyond it", ""}};
  for (const Limit& limit : server.limits) {
    rows.push_back({limit.name, FormatCount(limit.value), limit.code.empty() ? "–" : limit.code,
                    limit.description});
  }
  return out + FormatColumns(rows);
}

std::string FormatStatusJson(const ModelInfo& model, const ServerInfo& server) {
  std::vector<Json> services;
  for (const ServiceState& service : server.services) services.push_back(ServiceJson(service));
  Json limits = Json::Object({});
  for (const Limit& limit : server.limits) limits.Set(limit.name, Json::Integer(limit.value));
  Json json = Json::Object({});
  json.Set("model", ModelJson(model));
  json.Set("version", Json::String(server.version));
  json.Set("uptime_seconds", Json::Number(server.uptime_seconds));
  json.Set("topology", Json::String(server.topology));
  json.Set("ready", Json::Boolean(server.ready));
  json.Set("missing", WordsJson(server.missing));
  json.Set("warnings", WordsJson(server.warnings));
  json.Set("epoch", Json::Integer(static_cast<int64_t>(server.epoch)));
  json.Set("tier", Json::String(server.tier));
  json.Set("threads", Json::Integer(server.threads));
  json.Set("services", Json::Array(std::move(services)));
  json.Set("limits", std::move(limits));
  json.Set("queued_requests", Json::Integer(server.queued_requests));
  json.Set("running_requests", Json::Integer(server.running_requests));
  json.Set("kv_capacity_tokens", Json::Integer(server.kv_capacity_tokens));
  json.Set("kv_reserved_tokens", Json::Integer(server.kv_reserved_tokens));
  json.Set("requests_total", Json::Integer(server.requests_total));
  json.Set("rejected_total", Json::Integer(server.rejected_total));
  json.Set("failed_total", Json::Integer(server.failed_total));
  json.Set("cancelled_total", Json::Integer(server.cancelled_total));
  json.Set("prompt_tokens_total", Json::Integer(server.prompt_tokens_total));
  json.Set("generated_tokens_total", Json::Integer(server.generated_tokens_total));
  json.Set("assignments_total", Json::Integer(server.figures.assignments));
  json.Set("dropped_total", Json::Integer(server.figures.dropped));
  return json.ToCanonicalText();
}

std::string FormatExplanation(const Explanation& explanation) {
  const GenerateEvent& last = explanation.last;
  const GenerateTiming& timing = last.timing;
  std::string out =
      absl::StrCat(EscapeControls(explanation.request_id), "   ", StateName(explanation.state),
                   "   arrived ", FormatAge(explanation.age_seconds), " ago\n");
  if (!explanation.failure.ok()) return out + FormatError(explanation.failure) + "\n";
  absl::StrAppend(&out, "tokens   ", FormatCount(last.prompt_tokens), " prompt (",
                  FormatCount(last.prefilled_tokens), " processed, ",
                  FormatCount(last.cached_tokens), " cached) + ",
                  FormatCount(last.completion_tokens), "\n");
  if (explanation.state != RequestState::kFinished) return out;
  const StepFigures& figures = timing.figures;
  absl::StrAppend(
      &out, "ended by ", FinishReasonName(last.finish_reason),
      last.matched_stop.empty() ? "" : absl::StrCat(" (", EscapeControls(last.matched_stop), ")"),
      "   tokens ", last.tokens_hash, "  logits ", last.logits_hash, "   exact: ",
      last.exactness.exact()
          ? "yes"
          : absl::StrCat("no (", absl::StrJoin(last.exactness.reasons, "; "), ")"),
      "\n");
  absl::StrAppendFormat(&out,
                        "time     queued %.1f ms, prefill %.1f ms in %d steps, decode %.1f ms in "
                        "%d steps\n",
                        timing.queue_seconds * 1e3, timing.prefill_seconds * 1e3,
                        timing.prefill_steps, timing.decode_seconds * 1e3, timing.decode_steps);
  absl::StrAppendFormat(&out,
                        "experts  %s assignments, %s rows out, %s back; %s rows sent again in %s "
                        "rounds, %.1f ms\n",
                        FormatCount(figures.assignments), FormatCount(figures.dispatched_rows),
                        FormatCount(figures.reply_rows), FormatCount(figures.resent_rows),
                        FormatCount(figures.resends), figures.stall_seconds * 1e3);
  const std::string traffic = FormatTraffic(figures);
  if (!traffic.empty()) absl::StrAppend(&out, "network  ", traffic, "\n");
  return out;
}

std::string FormatExplanationJson(const Explanation& explanation) {
  const GenerateEvent& last = explanation.last;
  Json json = Json::Object({});
  json.Set("request_id", Json::String(explanation.request_id));
  json.Set("state", Json::String(StateName(explanation.state)));
  json.Set("age_seconds", Json::Number(explanation.age_seconds));
  Json failure;
  if (!explanation.failure.ok()) {
    failure = Json::Object({});
    failure.Set("code", Json::String(absl::StatusCodeToString(explanation.failure.code())));
    failure.Set("message", Json::String(std::string(explanation.failure.message())));
    failure.Set("hint", Json::String(HintOf(explanation.failure)));
  }
  json.Set("failure", std::move(failure));
  json.Set("prompt_tokens", Json::Integer(last.prompt_tokens));
  json.Set("cached_tokens", Json::Integer(last.cached_tokens));
  json.Set("completion_tokens", Json::Integer(last.completion_tokens));
  json.Set("finish_reason", Json::String(FinishReasonName(last.finish_reason)));
  json.Set("logits_hash", Json::String(last.logits_hash));
  json.Set("tokens_hash", Json::String(last.tokens_hash));
  json.Set("exactness", ExactnessJson(last.exactness));
  json.Set("timing", TimingJson(last.timing));
  return json.ToCanonicalText();
}

}  // namespace moebius
