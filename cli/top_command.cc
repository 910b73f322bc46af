// SPDX-License-Identifier: Apache-2.0
#include "cli/top_command.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/answer.h"
#include "cli/error_output.h"
#include "cli/heat_map.h"
#include "cli/interrupt.h"
#include "cli/router_commands.h"
#include "cli/terminal.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/parse_number.h"
#include "moebius/base/status.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);
constexpr int64_t kMaxFrames = 1'000'000;
constexpr char kHome[] = "\x1b[H\x1b[J";  // to the top left, and nothing below

/// Single keys from the terminal, without echo, while it lives. Does nothing elsewhere.
class Keys {
 public:
  Keys() : is_terminal_(tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!is_terminal_) return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  }
  ~Keys() {
    if (is_terminal_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  /// Whether q was typed, or the user asked to stop, within `time`.
  bool WaitForQuit(absl::Duration time) const {
    const Clock& clock = Clock::Monotonic();
    const absl::Duration end = clock.Now() + time;
    while (!InterruptScope::Requested()) {
      const absl::Duration left = end - clock.Now();
      if (left <= absl::ZeroDuration()) return false;
      // In pieces: an interrupt may come between the look and the wait.
      const int piece =
          static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 1, 100));
      pollfd input{is_terminal_ ? STDIN_FILENO : -1, POLLIN, 0};
      if (poll(&input, 1, piece) <= 0 || (input.revents & POLLIN) == 0) continue;
      char key = 0;
      if (read(STDIN_FILENO, &key, 1) == 1 && (key == 'q' || key == 'Q')) return true;
    }
    return true;
  }

 private:
  termios before_{};
  const bool is_terminal_;
};

// Between the looks; 0 also where the router has started again since: it counts from 0 then.
double SecondsOf(const TopFrame& frame) {
  return frame.now.uptime_seconds < frame.before.uptime_seconds ? 0 : frame.seconds;
}

double Rate(int64_t now, int64_t before, double seconds) {
  return seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

// Of the steps between the two looks, or of all where there were none.
StepFigures RecentFigures(const TopFrame& frame) {
  StepFigures recent = frame.now.figures;
  if (SecondsOf(frame) <= 0 || frame.now.figures.num_rows == frame.before.figures.num_rows) {
    return recent;
  }
  const StepFigures& before = frame.before.figures;
  recent.attention_seconds -= before.attention_seconds;
  recent.expert_seconds -= before.expert_seconds;
  recent.gate_seconds -= before.gate_seconds;
  recent.plan_seconds -= before.plan_seconds;
  recent.combine_seconds -= before.combine_seconds;
  recent.norm_seconds -= before.norm_seconds;
  recent.embed_seconds -= before.embed_seconds;
  recent.head_seconds -= before.head_seconds;
  return recent;
}

std::string FormatBounds(const TopFrame& frame) {
  const StepFigures figures = RecentFigures(frame);
  const std::array<std::pair<const char*, double>, 4> phases = {{
      {"attention", figures.attention_seconds},
      {"experts", figures.expert_seconds},
      {"gate+combine", figures.gate_seconds + figures.plan_seconds + figures.combine_seconds},
      {"norms+head", figures.norm_seconds + figures.embed_seconds + figures.head_seconds},
  }};
  double total = 0;
  for (const auto& [name, seconds] : phases) total += seconds;
  if (total <= 0) return "";
  std::string line = " bound by";
  for (const auto& [name, seconds] : phases) {
    absl::StrAppendFormat(&line, "  %s %s %.0f %%", name, DrawBar(seconds / total, 8),
                          100 * seconds / total);
  }
  return line + "\n";
}

size_t NumUsable(const ServerInfo& server) {
  return static_cast<size_t>(
      std::count_if(server.services.begin(), server.services.end(),
                    [](const ServiceState& service) { return service.state == "usable"; }));
}

}  // namespace

std::string FormatTop(const TopFrame& frame) {
  const ServerInfo& now = frame.now;
  const StepFigures& figures = now.figures;
  std::string out =
      absl::StrFormat("moebius top   %s   %s   up %.0f s   epoch %d\n", frame.target,
                      EscapeControls(frame.model.name), now.uptime_seconds, now.epoch);
  const bool exact = figures.dropped == 0 && figures.rerouted == 0;
  const bool conserved =
      figures.conservation_errors == 0 && figures.assignments == figures.combined + figures.dropped;
  absl::StrAppend(&out, exact ? " EXACT every answer" : " NOT EXACT, as the answers say",
                  conserved ? "   CONSERVED " : "   NOT CONSERVED ",
                  FormatCount(figures.assignments), " routed = ", FormatCount(figures.combined),
                  " combined + ", FormatCount(figures.dropped), " dropped   READY ", NumUsable(now),
                  " of ", now.services.size(), "\n");
  for (const std::string& missing : now.missing) {
    absl::StrAppend(&out, " ! ", EscapeControls(missing), "\n");
  }
  absl::StrAppend(
      &out, " requests ", FormatCount(now.running_requests), " running, ",
      FormatCount(now.queued_requests), " queued, ", FormatCount(now.rejected_total), " rejected, ",
      FormatCount(now.failed_total), " failed   tok/s in ",
      FormatRate(Rate(now.prompt_tokens_total, frame.before.prompt_tokens_total, SecondsOf(frame))),
      " out ",
      FormatRate(
          Rate(now.generated_tokens_total, frame.before.generated_tokens_total, SecondsOf(frame))),
      "   KV ", FormatCount(now.kv_reserved_tokens), " of ", FormatCount(now.kv_capacity_tokens),
      "\n");
  out += FormatBounds(frame);
  const std::string traffic = FormatTraffic(figures);
  if (!traffic.empty()) absl::StrAppend(&out, " network ", traffic, "\n");
  for (const ServiceState& service : now.services) {
    const std::string row = absl::StrFormat(
        "  %-14s %-10s %-9s %-22s %s", EscapeControls(service.name), service.role, service.state,
        EscapeControls(service.address), EscapeControls(service.detail));
    absl::StrAppend(&out, absl::StripTrailingAsciiWhitespace(row), "\n");
  }
  return out + FormatHeatMap(frame.load);
}

std::string FormatTopJson(const TopFrame& frame) {
  const ServerInfo& now = frame.now;
  Json json = *Json::Parse(FormatStatusJson(frame.model, now), "status");
  json.Set("interval_seconds", Json::Number(frame.seconds));
  json.Set("prompt_tokens_per_second",
           Json::Number(
               Rate(now.prompt_tokens_total, frame.before.prompt_tokens_total, SecondsOf(frame))));
  json.Set("generated_tokens_per_second",
           Json::Number(Rate(now.generated_tokens_total, frame.before.generated_tokens_total,
                             SecondsOf(frame))));
  json.Set("experts", *Json::Parse(FormatExpertLoadJson(frame.load), "experts"));
  return json.ToCanonicalText();
}

namespace {

/// What the flags mean.
struct TopArguments {
  ClientOptions client;
  absl::Duration interval = kInterval;
  int64_t count = 0;
};

absl::StatusOr<TopArguments> ParseTopFlags(const TopFlags& flags) {
  TopArguments arguments;
  MOEBIUS_ASSIGN_OR_RETURN(arguments.client, ParseRouterFlags(flags.router));
  if (flags.interval.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(arguments.interval, ParseTimeout("--interval", *flags.interval));
  }
  arguments.count = DescribeTerminal(STDOUT_FILENO).may_redraw && !flags.json ? kMaxFrames : 1;
  if (!flags.count.has_value()) return arguments;
  MOEBIUS_ASSIGN_OR_RETURN(arguments.count, ParseInteger("--count", *flags.count));
  if (arguments.count < 1 || arguments.count > kMaxFrames) {
    return absl::InvalidArgumentError(
        absl::StrCat("--count is ", arguments.count, ", not in [1, ", kMaxFrames, "]"));
  }
  return arguments;
}

absl::Status Look(Client& client, TopFrame* frame) {
  MOEBIUS_ASSIGN_OR_RETURN(frame->now, client.GetServerInfo());
  MOEBIUS_ASSIGN_OR_RETURN(frame->load, client.GetExpertLoad());
  return absl::OkStatus();
}

void Show(const TopFrame& frame, bool json) {
  const TerminalInfo terminal = DescribeTerminal(STDOUT_FILENO);
  std::string text = json ? FormatTopJson(frame) + "\n" : FormatTop(frame);
  if (!json && terminal.may_redraw) {
    text = absl::StrCat(kHome, FitTerminal(text, "q quits", terminal.columns, terminal.rows));
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

int RunTop(const TopFlags& flags) {
  const OutputForm form = flags.json ? OutputForm::kJson : OutputForm::kText;
  const auto fail = [form](const absl::Status& status, int exit_code) {
    PrintError(status, form);
    return exit_code;
  };
  const absl::StatusOr<TopArguments> arguments = ParseTopFlags(flags);
  if (!arguments.ok()) return fail(arguments.status(), kExitUsage);
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::Make(arguments->client);
  if (!client.ok()) return fail(client.status(), kExitHost);
  TopFrame frame;
  frame.target = arguments->client.target;
  const absl::StatusOr<ModelInfo> model = (*client)->GetModelInfo();
  if (!model.ok()) return fail(model.status(), kExitFailed);
  frame.model = *model;
  if (const absl::Status look = Look(**client, &frame); !look.ok()) return fail(look, kExitFailed);

  InterruptScope interrupt;
  const Keys keys;
  const Clock& clock = Clock::Monotonic();
  absl::Duration looked_at = clock.Now();
  for (int64_t shown = 0; shown < arguments->count; ++shown) {
    if (keys.WaitForQuit(arguments->interval)) return kExitOk;
    frame.before = std::exchange(frame.now, ServerInfo());
    if (const absl::Status look = Look(**client, &frame); !look.ok()) {
      return fail(look, kExitFailed);
    }
    const absl::Duration now = clock.Now();
    frame.seconds = absl::ToDoubleSeconds(now - std::exchange(looked_at, now));
    Show(frame, flags.json);
  }
  return kExitOk;
}

}  // namespace moebius
