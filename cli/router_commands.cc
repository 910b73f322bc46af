// SPDX-License-Identifier: Apache-2.0
#include "cli/router_commands.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/error_output.h"
#include "cli/interrupt.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"
#include "moebius/client/expert_admin.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr absl::Duration kWaitTime = absl::Seconds(60);
constexpr absl::Duration kAskEvery = absl::Milliseconds(100);
constexpr absl::Duration kAskTimeout = absl::Seconds(2);

OutputForm FormOf(const RouterCommandFlags& flags) {
  return flags.json ? OutputForm::kJson : OutputForm::kText;
}

int Fail(const RouterCommandFlags& flags, const absl::Status& status, int exit_code) {
  PrintError(status, FormOf(flags));
  return exit_code;
}

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

// Parses the flags and makes a client; a failure is printed, and `*exit_code` is what to end with.
std::unique_ptr<Client> MakeClient(const RouterCommandFlags& flags,
                                   absl::StatusOr<ClientOptions> options, int* exit_code) {
  if (!options.ok()) {
    *exit_code = Fail(flags, options.status(), kExitUsage);
    return nullptr;
  }
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Make(*options);
  if (!client.ok()) {
    *exit_code = Fail(flags, client.status(), kExitHost);
    return nullptr;
  }
  return *std::move(client);
}

// What keeps a router from being ready; empty when nothing does. A router that is not reached lacks
// itself.
std::vector<std::string> MissingAt(Client& client) {
  const absl::StatusOr<ServerInfo> info = client.GetServerInfo();
  if (!info.ok()) return {std::string(info.status().message())};
  if (info->ready) return {};
  return info->missing.empty() ? std::vector<std::string>{"the router does not say"}
                               : info->missing;
}

// Empty when it takes requests. Whoever asks may know that; what is missing is told to those who
// have a key, where the router wants one.
std::vector<std::string> WhatIsMissing(Client& client) {
  const absl::StatusOr<bool> serving = client.IsServing();
  if (serving.ok() && *serving) return {};
  return MissingAt(client);
}

std::string ReadinessJson(bool ready, double seconds, const std::vector<std::string>& missing) {
  std::vector<Json> words;
  for (const std::string& what : missing) words.push_back(Json::String(what));
  Json json = Json::Object({});
  json.Set("ready", Json::Boolean(ready));
  json.Set("seconds", Json::Number(seconds));
  json.Set("missing", Json::Array(std::move(words)));
  return json.ToCanonicalText() + "\n";
}

}  // namespace

int RunStatus(const RouterCommandFlags& flags) {
  int exit_code = kExitOk;
  const std::unique_ptr<Client> client =
      MakeClient(flags, ParseRouterFlags(flags.router), &exit_code);
  if (client == nullptr) return exit_code;
  const absl::StatusOr<ServerInfo> server = client->GetServerInfo();
  if (!server.ok()) return Fail(flags, server.status(), kExitFailed);
  const absl::StatusOr<ModelInfo> model = client->GetModelInfo();
  if (!model.ok()) return Fail(flags, model.status(), kExitFailed);
  Print(flags.json ? FormatStatusJson(*model, *server) + "\n"
                   : FormatStatus(*flags.router.router, *model, *server, flags.limits));
  return kExitOk;
}

int RunHealth(const RouterCommandFlags& flags) {
  int exit_code = kExitOk;
  const std::unique_ptr<Client> client =
      MakeClient(flags, ParseRouterFlags(flags.router), &exit_code);
  if (client == nullptr) return exit_code;
  const absl::StatusOr<bool> serving = client->IsServing(flags.name.value_or(""));
  if (!serving.ok()) return Fail(flags, serving.status(), kExitFailed);
  std::vector<std::string> missing;
  if (!*serving) missing = MissingAt(*client);
  if (flags.json) {
    Print(ReadinessJson(*serving, 0, missing));
  } else {
    Print(*serving ? "serving\n"
                   : absl::StrCat("not serving: ", absl::StrJoin(missing, "; "), "\n"));
  }
  return *serving ? kExitOk : kExitFailed;
}

int RunWait(const RouterCommandFlags& flags) {
  absl::Duration wait_time = kWaitTime;
  if (flags.wait_time.has_value()) {
    const absl::StatusOr<absl::Duration> parsed = ParseTimeout("--timeout", *flags.wait_time);
    if (!parsed.ok()) return Fail(flags, parsed.status(), kExitUsage);
    wait_time = *parsed;
  }
  absl::StatusOr<ClientOptions> options = ParseRouterFlags(flags.router);
  if (options.ok()) options->timeout = std::min(wait_time, kAskTimeout);
  int exit_code = kExitOk;
  const std::unique_ptr<Client> client = MakeClient(flags, std::move(options), &exit_code);
  if (client == nullptr) return exit_code;

  const Clock& clock = Clock::Monotonic();
  const absl::Duration start = clock.Now();
  InterruptScope interrupt;
  while (true) {
    const std::vector<std::string> missing = WhatIsMissing(*client);
    const absl::Duration passed = clock.Now() - start;
    const double seconds = absl::ToDoubleSeconds(passed);
    const bool ends = missing.empty() || passed >= wait_time || InterruptScope::Requested();
    if (!ends) {
      absl::SleepFor(std::min(kAskEvery, wait_time - passed));
      continue;
    }
    if (flags.json) {
      Print(ReadinessJson(missing.empty(), seconds, missing));
    } else if (missing.empty()) {
      Print(absl::StrFormat("ready after %.1f s\n", seconds));
    } else {
      Print(absl::StrFormat("not ready after %.1f s: %s\n", seconds, absl::StrJoin(missing, "; ")));
    }
    return missing.empty() ? kExitOk : kExitFailed;
  }
}

int RunDrain(const RouterCommandFlags& flags) {
  absl::StatusOr<ClientOptions> options = ParseCallFlags("--expert", flags.expert, flags.router);
  if (!options.ok()) return Fail(flags, options.status(), kExitUsage);
  options->timeout = kWaitTime;
  if (flags.wait_time.has_value()) {
    const absl::StatusOr<absl::Duration> parsed = ParseTimeout("--timeout", *flags.wait_time);
    if (!parsed.ok()) return Fail(flags, parsed.status(), kExitUsage);
    options->timeout = *parsed;
  }
  const absl::Duration start = Clock::Monotonic().Now();
  const absl::Status drained = DrainExpert(*options);
  if (!drained.ok()) return Fail(flags, drained, kExitFailed);
  const double seconds = absl::ToDoubleSeconds(Clock::Monotonic().Now() - start);
  if (flags.json) {
    Json json = Json::Object({});
    json.Set("drained", Json::Boolean(true));
    json.Set("seconds", Json::Number(seconds));
    Print(json.ToCanonicalText() + "\n");
  } else {
    Print(absl::StrFormat("drained after %.1f s: it takes no more rows and may be stopped\n",
                          seconds));
  }
  return kExitOk;
}

int RunExplain(const RouterCommandFlags& flags) {
  int exit_code = kExitOk;
  const std::unique_ptr<Client> client =
      MakeClient(flags, ParseRouterFlags(flags.router), &exit_code);
  if (client == nullptr) return exit_code;
  const absl::StatusOr<Explanation> explanation = client->Explain(flags.request_id);
  if (!explanation.ok()) return Fail(flags, explanation.status(), kExitFailed);
  Print(flags.json ? FormatExplanationJson(*explanation) + "\n" : FormatExplanation(*explanation));
  return kExitOk;
}

}  // namespace moebius
