// SPDX-License-Identifier: Apache-2.0
#include "cli/serve_command.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/certs_command.h"
#include "cli/error_output.h"
#include "cli/terminal.h"
#include "cli/version_command.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/executor.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/host_memory.h"
#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/json.h"
#include "moebius/routing/capacity.h"
#include "moebius/service/exit_status.h"
#include "moebius/service/process.h"
#include "moebius/wire/slot_codec.h"
#include "node/serve.h"
#include "node/weight_bytes.h"

namespace moebius {
namespace {

absl::Status ReadCount(absl::string_view flag, const std::optional<std::string>& text, int64_t min,
                       int64_t max, int64_t* count) {
  if (!text.has_value()) return absl::OkStatus();
  MOEBIUS_ASSIGN_OR_RETURN(*count, ParseInteger(flag, *text));
  if (*count >= min && *count <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", *count, ", not in [", min, ", ", max, "]"));
}

void PassOn(const char* flag, const std::optional<std::string>& value,
            std::vector<std::string>* flags) {
  if (value.has_value()) flags->push_back(absl::StrCat(flag, "=", *value));
}

// A folder of its own for the logs of this cluster, unless one is named.
absl::StatusOr<std::string> MakeLogDir(const std::optional<std::string>& named) {
  if (named.has_value()) {
    if (mkdir(named->c_str(), 0755) == 0 || errno == EEXIST) return *named;
    return absl::Status(absl::ErrnoToStatusCode(errno),
                        absl::StrCat("--log-dir ", *named, ": cannot be made"));
  }
  const char* temporary = getenv("TMPDIR");
  std::string path =
      absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/moebius-serve-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::Status(absl::ErrnoToStatusCode(errno), absl::StrCat(path, ": cannot be made"));
  }
  return path;
}

absl::StatusOr<ServeOptions> ParseServeFlags(const ServeFlags& flags) {
  ServeOptions options;
  int64_t experts = 1, attention = 1, threads = DefaultNumThreads();
  MOEBIUS_RETURN_IF_ERROR(ReadCount("--experts", flags.experts, 1, kMaxSlots, &experts));
  MOEBIUS_RETURN_IF_ERROR(ReadCount("--attention", flags.attention, 1, kMaxSlots, &attention));
  MOEBIUS_RETURN_IF_ERROR(
      ReadCount("--expert-replicas", flags.replicas, 1, experts, &options.num_replicas));
  MOEBIUS_RETURN_IF_ERROR(ReadCount("--threads", flags.threads, 1, 1024, &threads));
  options.num_experts = static_cast<int32_t>(experts);
  options.num_attention = static_cast<int32_t>(attention);
  options.num_threads = static_cast<int>(threads);
  options.restart = flags.restart;
  options.model_flags = {absl::StrCat("--model=", flags.model)};
  PassOn("--span", flags.span, &options.model_flags);
  PassOn("--group-fill", flags.group_fill, &options.model_flags);
  PassOn("--attention-sum", flags.attention_sum, &options.model_flags);
  PassOn("--attention-layout", flags.attention_layout, &options.model_flags);
  PassOn("--dtype", flags.dtype, &options.model_flags);
  PassOn("--tier", flags.tier, &options.model_flags);
  PassOn("--transport", flags.transport, &options.model_flags);
  int64_t kv_budget = DefaultKvBudgetBytes(ReadHostMemory());
  if (flags.kv_budget.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(kv_budget, ParseBytes("--kv-budget", *flags.kv_budget));
  }
  options.attention_flags = {
      absl::StrCat("--kv-budget=", std::max<int64_t>(1, kv_budget / attention))};
  MOEBIUS_RETURN_IF_ERROR(ParsePackedCache(flags.packed_cache).status());
  for (const auto& [flag, value] : NamesOf(flags.packed_cache)) {
    PassOn(flag, *value, &options.participant_flags);
  }
  if (!flags.replicas.has_value() && !flags.placement.has_value()) {
    // A model that cannot be opened is the router's to explain.
    if (const auto checkpoint = Checkpoint::Open(flags.model, CheckpointOptions());
        checkpoint.ok()) {
      options.num_replicas =
          ReplicasThatFit(**checkpoint, options.num_experts, kv_budget, ReadHostMemory());
    }
  }
  PassOn("--row-budget", flags.row_budget, &options.router_flags);
  PassOn("--chunk", flags.chunk, &options.router_flags);
  PassOn("--attention-method", flags.attention_method, &options.router_flags);
  PassOn("--attention-rates", flags.attention_rates, &options.router_flags);
  PassOn("--placement", flags.placement, &options.router_flags);
  options.advertise = flags.advertise.value_or("");
  if (flags.insecure) options.router_flags.push_back("--insecure");
  options.listen = flags.listen.value_or(options.listen);
  MOEBIUS_RETURN_IF_ERROR(ParseCapacity(TextOf(flags.capacity)).status());
  for (const auto& [flag, value] : NamesOf(flags.capacity)) {
    PassOn(flag, *value, &options.router_flags);
  }
  PassOn("--api-keys", flags.api_keys, &options.router_flags);
  PassOn("--trace-endpoint", flags.trace_endpoint, &options.router_flags);
  PassOn("--trace-sample-ratio", flags.trace_sample_ratio, &options.router_flags);
  PassOn("--trace-caller-rate", flags.trace_caller_rate, &options.router_flags);
  PassOn("--bias-balancer", flags.bias_balancer, &options.router_flags);
  PassOn("--bias-file", flags.bias_file, &options.router_flags);
  if (flags.placement.has_value() && flags.replicas.has_value()) {
    return absl::InvalidArgumentError("--placement and --expert-replicas contradict each other");
  }
  options.certs_dir = flags.certs.value_or("");
  const std::string path = OwnPath();
  options.program_dir = path.substr(0, path.rfind('/'));
  return options;
}

// --- What is said, for programs and for people.

Json TextOrNull(const std::string& text) { return text.empty() ? Json() : Json::String(text); }

void PrintJson(const Json& json) { PrintLine(json.ToCanonicalText()); }

// Of the page for people; empty without an HTTP port.
std::string StatusUrl(const std::vector<ServedProcess>& processes) {
  const std::string& http = processes[0].http;
  return http.empty() ? "" : absl::StrCat("http://", http, "/status");
}

// Where experts of other hosts join.
std::string JoinAddress(const std::vector<ServedProcess>& processes, const ServeOptions& options) {
  return options.advertise.empty() ? processes[0].data : options.advertise;
}

Json ReadyJson(const std::vector<ServedProcess>& processes, const ServeOptions& options) {
  std::vector<Json> list;
  for (const ServedProcess& process : processes) {
    Json entry = Json::Object({});
    entry.Set("name", Json::String(process.name));
    entry.Set("role", Json::String(RoleName(process.role)));
    entry.Set("pid", Json::Integer(process.pid));
    entry.Set("endpoint", TextOrNull(process.endpoint()));
    entry.Set(
        "metrics",
        TextOrNull(process.http.empty() ? "" : absl::StrCat("http://", process.http, "/metrics")));
    list.push_back(std::move(entry));
  }
  Json json = Json::Object({});
  json.Set("event", Json::String("ready"));
  json.Set("router", Json::String(processes[0].endpoint()));
  json.Set("join", Json::String(JoinAddress(processes, options)));
  json.Set("status", TextOrNull(StatusUrl(processes)));
  json.Set("processes", Json::Array(std::move(list)));
  return json;
}

Json EventJson(absl::string_view event, const ServedProcess& process) {
  Json json = Json::Object({});
  json.Set("event", Json::String(event));
  json.Set("name", Json::String(process.name));
  json.Set("pid", Json::Integer(process.pid));
  json.Set("exit_code", Json());
  json.Set("signal", Json());
  json.Set("message", Json::String(""));
  return json;
}

Json EndedJson(const ServedProcess& process, const ChildEnd& end, const std::string& message,
               const std::string& next) {
  Json json = EventJson("ended", process);
  if (end.exit_code.has_value()) json.Set("exit_code", Json::Integer(*end.exit_code));
  if (end.signal.has_value()) json.Set("signal", Json::Integer(*end.signal));
  json.Set("message", Json::String(absl::StrCat(ChildEndWords(end), next.empty() ? "" : "; ", next,
                                                message.empty() ? "" : ": ", message)));
  return json;
}

void PrintReady(const std::vector<ServedProcess>& processes, int64_t loaded_bytes, double seconds,
                const ServeOptions& options) {
  absl::FPrintF(stderr, "ready in %.1f s: %s loaded, a canary token went round   logs in %s\n",
                seconds, FormatBytes(loaded_bytes), options.log_dir);
  for (const ServedProcess& process : processes) {
    absl::FPrintF(stderr, "  %-13s pid %-8d %-22s http://%s/metrics\n", process.name, process.pid,
                  process.endpoint(), process.http);
  }
  if (!options.certs_dir.empty()) {
    absl::FPrintF(stderr, "mutual TLS: callers give %s\n",
                  absl::StrJoin(TlsFlagsOf(options.certs_dir, "client"), " "));
  }
  absl::FPrintF(stderr, "more experts join with: moebius-expert %s --join %s\n",
                options.model_flags.front(), JoinAddress(processes, options));
  if (!processes[0].admin.empty()) {
    absl::FPrintF(stderr, "operators' port of the router %s\n", processes[0].admin);
  }
  absl::FPrintF(stderr, "status page %s   Ctrl-C stops all\n", StatusUrl(processes));
}

ServeEvents BuildEvents(bool json, const ServeOptions& options) {
  const absl::Duration begin = Clock::Monotonic().Now();
  auto is_first = std::make_shared<bool>(true);
  ServeEvents events;
  events.on_waiting = [](const std::string& why) {
    absl::FPrintF(stderr, "waiting: %s\n", EscapeControls(why));
  };
  events.on_ready = [=](const std::vector<ServedProcess>& processes, int64_t loaded_bytes,
                        const std::vector<std::string>& restarted) {
    if (std::exchange(*is_first, false)) {
      if (json) PrintJson(ReadyJson(processes, options));
      PrintReady(processes, loaded_bytes, absl::ToDoubleSeconds(Clock::Monotonic().Now() - begin),
                 options);
      return;
    }
    for (const ServedProcess& process : processes) {
      for (const std::string& name : restarted) {
        if (name != process.name) continue;
        if (json) PrintJson(EventJson("ready", process));
        absl::FPrintF(stderr, "%s is back as process %d\n", name, process.pid);
      }
    }
  };
  events.on_ended = [=](const ServedProcess& process, const ChildEnd& end,
                        const std::string& message, const std::string& next) {
    if (json) PrintJson(EndedJson(process, end, message, next));
    absl::FPrintF(stderr, "%s (pid %d) %s%s%s%s%s\n", process.name, process.pid, ChildEndWords(end),
                  next.empty() ? "" : "; ", next, message.empty() ? "" : ", its last lines:\n",
                  EscapeControls(message));
  };
  return events;
}

}  // namespace

int RunServe(const ServeFlags& flags) {
  const OutputForm form = flags.json ? OutputForm::kJson : OutputForm::kText;
  auto options = ParseServeFlags(flags);
  if (!options.ok()) {
    PrintError(options.status(), form);
    return kExitUsage;
  }
  const auto log_dir = MakeLogDir(flags.log_dir);
  if (!log_dir.ok()) {
    PrintError(log_dir.status(), form);
    return kExitHost;
  }
  options->log_dir = *log_dir;
  StopSignal stop;
  Serve serve(*options, BuildEvents(flags.json, *options));
  const absl::Status status = serve.Run(stop);
  absl::FPrintF(stderr, "all stopped, %d of %d left exited 0; logs in %s\n", serve.num_clean_ends(),
                serve.num_stopped(), *log_dir);
  if (status.ok()) return kExitOk;
  PrintError(status, form);
  return ExitCodeOf(status);
}

}  // namespace moebius
