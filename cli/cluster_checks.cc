// SPDX-License-Identifier: Apache-2.0
#include "cli/cluster_checks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/client/client.h"
#include "moebius/telemetry/http/http_message.h"
#include "moebius/telemetry/trace/http_client.h"
#include "moebius/transport/address.h"

namespace moebius {
namespace {

constexpr absl::Duration kAskTimeout = absl::Seconds(3);  // one process
constexpr size_t kMaxAnswerBytes = 16 << 20;
constexpr size_t kMaxProcesses = 1024;
constexpr size_t kAskedAtOnce = 16;
// A header's time is a whole second, and the question takes some of another.
constexpr absl::Duration kMaxSkew = absl::Seconds(2);

/// One line of /metrics.
struct Sample {
  std::map<std::string, std::string> labels;
  double value = 0;
};

// The first sample of a metric; what is no such line is passed over.
std::optional<Sample> FindSample(absl::string_view scrape, absl::string_view metric) {
  for (absl::string_view line : absl::StrSplit(scrape, '\n')) {
    if (!absl::ConsumePrefix(&line, metric)) continue;
    Sample sample;
    if (absl::ConsumePrefix(&line, "{")) {
      const size_t end = line.find('}');
      if (end == absl::string_view::npos) continue;
      for (const absl::string_view label : absl::StrSplit(line.substr(0, end), ',')) {
        const std::vector<absl::string_view> parts = absl::StrSplit(label, absl::MaxSplits('=', 1));
        if (parts.size() != 2 || parts[1].size() < 2) continue;
        sample.labels[std::string(parts[0])] = std::string(parts[1].substr(1, parts[1].size() - 2));
      }
      line.remove_prefix(end + 1);
    }
    if (absl::ConsumePrefix(&line, " ") && absl::SimpleAtod(line, &sample.value)) return sample;
  }
  return std::nullopt;
}

std::string LabelOf(absl::string_view scrape, absl::string_view metric, const std::string& label) {
  std::optional<Sample> sample = FindSample(scrape, metric);
  return sample.has_value() ? sample->labels[label] : "";
}

absl::StatusOr<HttpAnswer> Ask(const std::string& address, absl::string_view path,
                               absl::Duration until) {
  MOEBIUS_ASSIGN_OR_RETURN(const HttpTarget target,
                           ParseHttpTarget(absl::StrCat("http://", address, path), "/"));
  return GetHttp(target, kMaxAnswerBytes, [until] { return until; });
}

// What one probe complains of.
std::vector<std::string> Complaints(const HttpAnswer& answer, absl::string_view path) {
  if (answer.code == 200) return {};
  const std::vector<std::string> lines = absl::StrSplit(answer.body, '\n', absl::SkipEmpty());
  return {absl::StrCat(path, " ", answer.code, ": ", absl::StrJoin(lines, "; "))};
}

DoctorCheck Fault(absl::string_view name, std::string detail, std::string hint) {
  return {std::string(name), CheckState::kFault, std::move(detail), std::move(hint)};
}

// "0.1.0 at router, expert-0; 0.2.0 at expert-1"; empty where all that say one say the same.
template <typename Read>
std::string Disagreement(absl::Span<const ProcessFacts> processes, Read read, std::string* agreed) {
  std::map<std::string, std::vector<std::string>> by_value;
  for (const ProcessFacts& process : processes) {
    const std::string value = read(process);
    if (!value.empty()) by_value[value].push_back(process.name);
  }
  if (by_value.size() == 1) *agreed = by_value.begin()->first;
  if (by_value.size() < 2) return "";
  return absl::StrJoin(by_value, "; ", [](std::string* out, const auto& group) {
    absl::StrAppend(out, group.first, " at ", absl::StrJoin(group.second, ", "));
  });
}

// Silence proves nothing.
std::optional<DoctorCheck> NobodyAnswers(absl::string_view name,
                                         absl::Span<const ProcessFacts> processes) {
  for (const ProcessFacts& process : processes) {
    if (process.reached.ok()) return std::nullopt;
  }
  return DoctorCheck{std::string(name), CheckState::kWarning, "nobody answers", ""};
}

template <typename Read>
DoctorCheck CheckAgreement(absl::string_view name, absl::Span<const ProcessFacts> processes,
                           Read read, CheckState otherwise, absl::string_view hint) {
  if (auto silence = NobodyAnswers(name, processes)) return *std::move(silence);
  std::string agreed;
  const std::string others = Disagreement(processes, read, &agreed);
  if (!others.empty()) return {std::string(name), otherwise, others, std::string(hint)};
  return {std::string(name), CheckState::kOk, agreed.empty() ? "nobody says one" : agreed, ""};
}

DoctorCheck CheckReached(absl::Span<const ProcessFacts> processes) {
  std::vector<std::string> silent;
  for (const ProcessFacts& process : processes) {
    if (process.reached.ok()) continue;
    silent.push_back(
        absl::StrCat(process.name, " (", process.http_address, "): ", process.reached.message()));
  }
  if (silent.empty()) {
    return {"answering", CheckState::kOk,
            absl::StrCat("all ", processes.size(), " HTTP ports answer"), ""};
  }
  return Fault("answering", absl::StrJoin(silent, "; "),
               "is the process there, and may this host reach its --http-listen?");
}

DoctorCheck CheckHealth(absl::Span<const ProcessFacts> processes) {
  if (auto silence = NobodyAnswers("health", processes)) return *std::move(silence);
  std::vector<std::string> complaints;
  for (const ProcessFacts& process : processes) {
    for (const std::string& complaint : process.unhealthy) {
      complaints.push_back(absl::StrCat(process.name, " ", complaint));
    }
  }
  if (complaints.empty()) {
    return {"health", CheckState::kOk, "every probe of those that answer says yes", ""};
  }
  return Fault("health", absl::StrJoin(complaints, " · "),
               "a process says itself what it lacks; its log says more");
}

DoctorCheck CheckClocks(absl::Span<const ProcessFacts> processes) {
  if (auto silence = NobodyAnswers("clocks", processes)) return *std::move(silence);
  std::vector<std::string> off;
  for (const ProcessFacts& process : processes) {
    if (!process.skew.has_value() || absl::AbsDuration(*process.skew) <= kMaxSkew) continue;
    off.push_back(
        absl::StrFormat("%s by %+.0f s", process.name, absl::ToDoubleSeconds(*process.skew)));
  }
  if (off.empty()) {
    return {"clocks", CheckState::kOk,
            absl::StrCat("within ", absl::FormatDuration(kMaxSkew), " of this host's"), ""};
  }
  return {"clocks", CheckState::kWarning, absl::StrCat("off: ", absl::StrJoin(off, ", ")),
          "nothing computes with wall clocks, but logs, traces and certificates do: look at NTP"};
}

// One that listens on all addresses of the router's host is asked there.
std::string AskableAddress(const std::string& listened, const std::string& router) {
  absl::StatusOr<Address> address = ParseAddress(listened);
  const absl::StatusOr<Address> asked = ParseAddress(router);
  if (!address.ok() || !asked.ok() || !IsUnspecified(*address)) return listened;
  address->host = asked->host;
  return FormatAddress(*address);
}

// Addresses once each, with the names that the router knows.
std::vector<std::pair<std::string, std::string>> ListProcesses(
    const std::vector<ServiceState>& services, const std::string& router,
    const std::vector<std::string>& peers) {
  std::vector<std::pair<std::string, std::string>> list;
  const auto add = [&list](const std::string& name, const std::string& address) {
    const bool known = std::any_of(list.begin(), list.end(),
                                   [&](const auto& entry) { return entry.second == address; });
    if (!address.empty() && !known && list.size() < kMaxProcesses) list.emplace_back(name, address);
  };
  for (const ServiceState& service : services) {
    add(service.name, AskableAddress(service.http_address, router));
  }
  for (const std::string& peer : peers) add(peer, peer);
  return list;
}

std::vector<ProcessFacts> AskAll(const std::vector<std::pair<std::string, std::string>>& list) {
  std::vector<ProcessFacts> facts(list.size());
  for (size_t begin = 0; begin < list.size(); begin += kAskedAtOnce) {
    std::vector<std::thread> threads;
    for (size_t i = begin; i < std::min(list.size(), begin + kAskedAtOnce); ++i) {
      threads.emplace_back(
          [&, i] { facts[i] = AskProcess(list[i].first, list[i].second, kAskTimeout); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  return facts;
}

absl::StatusOr<std::vector<std::string>> ParsePeers(const std::optional<std::string>& peers) {
  if (!peers.has_value()) return std::vector<std::string>();
  std::vector<std::string> addresses = absl::StrSplit(*peers, ',');
  for (const std::string& address : addresses) {
    const auto target = ParseHttpTarget(absl::StrCat("http://", address), "/");
    if (target.ok() && target->path == "/") continue;
    return WithHint(
        absl::InvalidArgumentError(absl::StrCat("--peers: '", address, "' is no HOST:PORT")),
        "give the addresses of --http-listen, with commas between them");
  }
  return addresses;
}

}  // namespace

ProcessFacts AskProcess(const std::string& name, const std::string& http_address,
                        absl::Duration timeout) {
  const absl::Duration until = Clock::Monotonic().Now() + timeout;
  ProcessFacts facts;
  facts.name = name;
  facts.http_address = http_address;
  for (const char* path : {"/livez", "/startupz", "/readyz"}) {
    const absl::StatusOr<HttpAnswer> answer = Ask(http_address, path, until);
    if (!answer.ok()) {
      facts.reached = answer.status();
      return facts;
    }
    if (const auto time = ParseHttpDate(answer->Header("Date")); time.has_value()) {
      facts.skew = *time - absl::Now();
    }
    for (std::string& complaint : Complaints(*answer, path)) {
      facts.unhealthy.push_back(std::move(complaint));
    }
  }
  const absl::StatusOr<HttpAnswer> metrics = Ask(http_address, "/metrics", until);
  if (!metrics.ok()) {
    facts.reached = metrics.status();
    return facts;
  }
  facts.version = LabelOf(metrics->body, "moebius_build_info", "version");
  facts.config_hash = LabelOf(metrics->body, "moebius_config_info", "config_hash");
  if (const auto epoch = FindSample(metrics->body, "moebius_placement_epoch"); epoch.has_value()) {
    facts.epoch = static_cast<int64_t>(epoch->value);
  }
  return facts;
}

std::vector<DoctorCheck> JudgeRouter(const ServerInfo& info) {
  DoctorCheck router{
      "router", CheckState::kOk,
      absl::StrCat("ready, version ", info.version, ", placement epoch ", info.epoch, ", ",
                   info.running_requests, " requests run, ", info.queued_requests, " wait"),
      ""};
  if (!info.ready) {
    router.state = CheckState::kFault;
    router.detail = absl::StrCat("not ready: ", absl::StrJoin(info.missing, "; "));
    router.hint = "start what is missing, or let it come back";
  }
  std::vector<std::string> bad;
  for (const ServiceState& service : info.services) {
    if (service.state == "usable") continue;
    bad.push_back(absl::StrCat(service.name, " is ", service.state,
                               service.detail.empty() ? "" : ": ", service.detail));
  }
  DoctorCheck services{"services", CheckState::kOk,
                       absl::StrCat("all ", info.services.size(), " are usable"), ""};
  if (!bad.empty()) {
    // While the router is ready others do their work.
    services.state = info.ready ? CheckState::kWarning : CheckState::kFault;
    services.detail = absl::StrJoin(bad, "; ");
    services.hint = "moebius status says what each has said last";
  }
  std::vector<DoctorCheck> checks = {router, services};
  for (const std::string& warning : info.warnings) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(warning, absl::MaxSplits("; ", 1));
    checks.push_back({"exposure", CheckState::kWarning, parts.first, parts.second});
  }
  return checks;
}

std::vector<DoctorCheck> JudgeProcesses(absl::Span<const ProcessFacts> processes) {
  return {
      CheckReached(processes),
      CheckHealth(processes),
      CheckAgreement(
          "version", processes, [](const ProcessFacts& process) { return process.version; },
          CheckState::kWarning, "neighbouring versions work together; finish the update"),
      CheckAgreement(
          "configuration", processes,
          [](const ProcessFacts& process) { return process.config_hash; }, CheckState::kFault,
          "processes of other hashes refuse each other: flags that change answers differ"),
      CheckAgreement(
          "placement", processes,
          [](const ProcessFacts& process) {
            return process.epoch.has_value() ? absl::StrCat("epoch ", *process.epoch) : "";
          },
          CheckState::kWarning,
          "of routers that share experts: right for moments after a change, and never for long"),
      CheckClocks(processes)};
}

absl::StatusOr<std::vector<DoctorCheck>> ExamineCluster(const DoctorFlags& flags) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<std::string> peers, ParsePeers(flags.peers));
  std::vector<DoctorCheck> checks;
  std::vector<ServiceState> services;
  if (flags.router.router.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(const ClientOptions options, ParseRouterFlags(flags.router));
    MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Make(options));
    const absl::StatusOr<ServerInfo> info = client->GetServerInfo();
    if (info.ok()) {
      checks = JudgeRouter(*info);
      services = info->services;
    } else {
      checks.push_back(
          Fault("router", std::string(info.status().message()), HintOf(info.status())));
    }
  }
  const auto list = ListProcesses(services, flags.router.router.value_or(""), peers);
  if (list.empty()) return checks;
  for (DoctorCheck& check : JudgeProcesses(AskAll(list))) checks.push_back(std::move(check));
  return checks;
}

}  // namespace moebius
