// SPDX-License-Identifier: Apache-2.0
#include "node/serve.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/service/exit_status.h"
#include "moebius/transport/address.h"
#include "node/certificates.h"

namespace moebius {
namespace {

// How often signals and ends are looked for where no line wakes: a death shows on its pipe.
constexpr absl::Duration kWatchInterval = absl::Milliseconds(50);
constexpr size_t kMaxMessageBytes = 2048;

// The value of KEY= in a line of words; empty where it is not there.
std::string ValueOf(const std::string& line, absl::string_view key) {
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    absl::string_view value = word;
    if (absl::ConsumePrefix(&value, key) && absl::ConsumePrefix(&value, "=")) {
      return std::string(value);
    }
  }
  return "";
}

}  // namespace

std::string OnThisHost(const std::string& address) {
  const auto parsed = ParseAddress(address);
  if (!parsed.ok() || !IsUnspecified(*parsed)) return address;
  return FormatAddress({parsed->host == "::" ? "::1" : "127.0.0.1", parsed->port});
}

int ThreadsOf(int num_threads, int32_t num_processes) {
  const int share = num_threads / std::max(1, num_processes);
  return std::max(share, std::min(num_threads, 2));
}

std::string ServedProcess::endpoint() const {
  for (const std::string* address : {&grpc, &admin, &data, &http}) {
    if (!address->empty()) return *address;
  }
  return "";
}

bool ParseListening(const std::string& line, ServedProcess* process) {
  if (!absl::StartsWith(line, "listening ")) return false;
  process->data = ValueOf(line, "data");
  process->admin = ValueOf(line, "admin");
  process->http = ValueOf(line, "http");
  process->grpc = ValueOf(line, "grpc");
  return true;
}

struct Serve::Child {
  explicit Child(const RestartOptions& restart) : policy(restart) {}

  ServedProcess facts;
  int32_t index = 0;  // of its role
  std::optional<ChildProcess> process;
  bool is_listening = false;
  RestartPolicy policy;
  absl::Duration start_at;  // where it waits to be started again
  bool is_given_up = false;
};

Serve::Serve(const ServeOptions& options, const ServeEvents& events)
    : options_(options), events_(events) {
  const auto add = [this](Role role, int32_t index, const std::string& name) {
    auto child = std::make_unique<Child>(options_.restart_options);
    child->facts.name = name;
    child->facts.role = role;
    child->facts.log_file = absl::StrCat(options_.log_dir, "/", name, ".log");
    child->index = index;
    children_.push_back(std::move(child));
  };
  add(Role::kRouter, 0, "router");
  for (int32_t rank = 0; rank < options.num_attention; ++rank) {
    add(Role::kAttention, rank, absl::StrCat("attention-", rank));
  }
  for (int32_t service = 0; service < options.num_experts; ++service) {
    add(Role::kExpert, service, absl::StrCat("expert-", service));
  }
}

Serve::~Serve() = default;

std::string Serve::ListenOf(const ServedProcess& facts) const {
  if (facts.role != Role::kRouter) return "127.0.0.1:0";
  return facts.data.empty() ? options_.listen : facts.data;
}

std::vector<std::string> Serve::CommandOf(const Child& child) const {
  const ServedProcess& facts = child.facts;
  const Role role = facts.role;
  // After a restart the ports of before: whoever scrapes or asks there need not learn new ones.
  const auto kept = [](const std::string& address) {
    return address.empty() ? std::string("127.0.0.1:0") : address;
  };
  const int32_t num_processes = role == Role::kRouter   ? 1
                                : role == Role::kExpert ? options_.num_experts
                                                        : options_.num_attention;
  std::vector<std::string> command = {
      absl::StrCat(options_.program_dir, "/moebius-", RoleName(role)),
      absl::StrCat("--name=", facts.name),
      absl::StrCat("--threads=", ThreadsOf(options_.num_threads, num_processes)),
      absl::StrCat("--die-with-parent=", getpid()),
      absl::StrCat("--http-listen=", kept(facts.http)),
      role == Role::kExpert ? absl::StrCat("--admin-listen=", kept(facts.admin))
                            : absl::StrCat("--listen=", ListenOf(facts))};
  command.insert(command.end(), options_.model_flags.begin(), options_.model_flags.end());
  if (!options_.certs_dir.empty()) {
    const CertificateFolder folder = CertificateFolder::In(options_.certs_dir);
    const CertificateFiles& files = folder.Of(RoleName(role));
    command.push_back(absl::StrCat("--tls-ca=", folder.ca_cert));
    command.push_back(absl::StrCat("--tls-cert=", files.cert));
    command.push_back(absl::StrCat("--tls-key=", files.key));
  }
  if (role == Role::kRouter) {
    command.push_back(absl::StrCat("--admin-listen=", kept(facts.admin)));
    command.push_back(absl::StrCat("--grpc-listen=", kept(facts.grpc)));
    command.push_back(absl::StrCat("--experts=", options_.num_experts));
    if (!options_.advertise.empty()) {
      command.push_back(absl::StrCat("--advertise=", options_.advertise));
    }
    command.push_back(absl::StrCat("--attention=", options_.num_attention));
    command.push_back(absl::StrCat("--expert-replicas=", options_.num_replicas));
    command.push_back("--drain-grace-seconds=0");  // nobody spreads requests over its routers
    command.insert(command.end(), options_.router_flags.begin(), options_.router_flags.end());
  } else {
    command.push_back(absl::StrCat("--join=", OnThisHost(children_[0]->facts.data)));
    command.push_back(absl::StrCat("--slot=", child.index));
    command.insert(command.end(), options_.participant_flags.begin(),
                   options_.participant_flags.end());
    if (role == Role::kAttention) {
      command.insert(command.end(), options_.attention_flags.begin(),
                     options_.attention_flags.end());
    }
  }
  return command;
}

absl::Status Serve::StartChild(Child& child) {
  auto process = ChildProcess::Start(CommandOf(child), child.facts.log_file);
  if (!process.ok()) return WithContext(process.status(), child.facts.name);
  child.process.emplace(*std::move(process));
  child.facts.pid = child.process->pid();
  child.is_listening = false;
  child.policy.OnStart(Clock::Monotonic().Now());
  return absl::OkStatus();
}

absl::Status Serve::StartParticipants() {
  for (const std::unique_ptr<Child>& child : children_) {
    if (child->process.has_value() || child->start_at != absl::ZeroDuration()) continue;
    if (child->is_given_up) continue;
    MOEBIUS_RETURN_IF_ERROR(StartChild(*child));
  }
  return absl::OkStatus();
}

absl::Status Serve::Run(StopSignal& stop) {
  absl::Status status = StartChild(*children_[0]);
  StopReason reason = StopReason::kStop;
  while (status.ok() && !stop.Wait(absl::ZeroDuration(), &reason)) {
    status = Watch(kWatchInterval);
  }
  StopAll(reason);
  return status;
}

absl::Status Serve::Watch(absl::Duration timeout) {
  std::vector<pollfd> pipes;
  for (const std::unique_ptr<Child>& child : children_) {
    if (child->process.has_value() && child->process->fd() >= 0) {
      pipes.push_back({child->process->fd(), POLLIN, 0});
    }
  }
  poll(pipes.data(), pipes.size(), static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  const absl::Duration now = Clock::Monotonic().Now();
  for (const std::unique_ptr<Child>& child : children_) {
    if (child->process.has_value()) {
      MOEBIUS_RETURN_IF_ERROR(ReadFrom(*child));
    } else if (child->start_at != absl::ZeroDuration() && now >= child->start_at) {
      child->start_at = absl::ZeroDuration();
      MOEBIUS_RETURN_IF_ERROR(StartChild(*child));
    }
  }
  return absl::OkStatus();
}

absl::Status Serve::ReadFrom(Child& child) {
  for (const std::string& line : child.process->ReadLines()) {
    MOEBIUS_RETURN_IF_ERROR(TakeLine(child, line));
  }
  if (const std::optional<ChildEnd> end = child.process->TryWait()) return TakeEnd(child, *end);
  return absl::OkStatus();
}

absl::Status Serve::TakeLine(Child& child, const std::string& line) {
  if (ParseListening(line, &child.facts)) {
    child.is_listening = true;
    return child.facts.role == Role::kRouter ? StartParticipants() : absl::OkStatus();
  }
  if (child.facts.role != Role::kRouter) return absl::OkStatus();
  if (absl::StartsWith(line, "waiting ")) {
    const size_t why = line.find(" why=");
    if (why != std::string::npos && events_.on_waiting) events_.on_waiting(line.substr(why + 5));
  } else if (absl::StartsWith(line, "ready ")) {
    int64_t loaded_bytes = 0;
    static_cast<void>(absl::SimpleAtoi(ValueOf(line, "loaded_bytes"), &loaded_bytes));
    std::vector<ServedProcess> processes;
    for (const std::unique_ptr<Child>& each : children_) processes.push_back(each->facts);
    is_ready_ = true;
    const std::vector<std::string> restarted = std::exchange(restarted_, {});
    if (events_.on_ready) events_.on_ready(processes, loaded_bytes, restarted);
  }
  return absl::OkStatus();
}

absl::Status Serve::TakeEnd(Child& child, const ChildEnd& end) {
  const ServedProcess facts = child.facts;
  child.process.reset();
  const std::string log = LastLines(facts.log_file, kMaxMessageBytes);
  // A port of before may be somebody else's by now: only the public and the data port are worth
  // waiting for.
  if (end.exit_code == kExitBind) {
    child.facts.http.clear();
    child.facts.admin.clear();
  }
  const std::string next = options_.restart && is_ready_ ? PlanRestart(child) : "";
  if (events_.on_ended) events_.on_ended(facts, end, log, next);
  if (child.start_at != absl::ZeroDuration()) return absl::OkStatus();
  if (is_ready_ && facts.role != Role::kRouter) return absl::OkStatus();
  const absl::Status status =
      WithHint(absl::UnavailableError(absl::StrCat(
                   facts.name, " ", ChildEndWords(end),
                   is_ready_ ? "; nothing can be served without it" : " before all were ready",
                   log.empty() ? "" : ": ", log)),
               absl::StrCat("its log is ", facts.log_file));
  // What kept it from starting keeps the cluster from it: the model, a flag, the host.
  if (is_ready_ || end.exit_code.value_or(0) == 0) return WithExitCode(status, kExitFailed);
  return WithExitCode(status, static_cast<ExitCode>(*end.exit_code));
}

// Sets when the child is started again, or that it is not; says so.
std::string Serve::PlanRestart(Child& child) {
  const absl::Duration now = Clock::Monotonic().Now();
  const std::optional<absl::Duration> delay = child.policy.OnEnd(now);
  const int max_restarts = options_.restart_options.max_restarts;
  if (!delay.has_value()) {
    child.is_given_up = true;
    return absl::StrCat("it was started again ", max_restarts,
                        " times in a row and is left; restart moebius serve once it can run");
  }
  child.start_at = now + *delay;
  if (std::count(restarted_.begin(), restarted_.end(), child.facts.name) == 0) {
    restarted_.push_back(child.facts.name);
  }
  return absl::StrCat("it is started again in ", absl::FormatDuration(*delay), " (",
                      child.policy.num_restarts(), " of ", max_restarts, " times in a row)");
}

void Serve::StopAll(StopReason reason) {
  // A drain is the router's: the others serve it until it has ended.
  if (reason == StopReason::kDrain && children_[0]->process.has_value()) {
    children_[0]->process->Signal(SIGTERM);
    const absl::Duration end = Clock::Monotonic().Now() + options_.stop_limit;
    while (!children_[0]->process->TryWait().has_value() && Clock::Monotonic().Now() < end) {
      poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(kWatchInterval)));
    }
  }
  for (const std::unique_ptr<Child>& child : children_) {
    if (child->process.has_value()) {
      ++num_stopped_;
      child->process->Signal(SIGINT);
    }
  }
  WaitForEnds(options_.stop_limit);
}

void Serve::WaitForEnds(absl::Duration limit) {
  const absl::Duration end = Clock::Monotonic().Now() + limit;
  bool all_ended = false;
  while (!all_ended && Clock::Monotonic().Now() < end) {
    all_ended = true;
    for (const std::unique_ptr<Child>& child : children_) {
      if (!child->process.has_value()) continue;
      const std::optional<ChildEnd> ended = child->process->TryWait();
      if (!ended.has_value()) {
        all_ended = false;
        continue;
      }
      if (ended->exit_code == 0) ++num_clean_ends_;
      child->process.reset();
    }
    if (!all_ended) poll(nullptr, 0, 10);
  }
  // Whoever is left is killed and waited for.
  for (const std::unique_ptr<Child>& child : children_) child->process.reset();
}

}  // namespace moebius
