// SPDX-License-Identifier: Apache-2.0
#include "cli/route_command.h"

#include <cstdio>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/arguments.h"
#include "cli/backend.h"
#include "cli/error_output.h"
#include "cli/heat_map.h"
#include "cli/interrupt.h"
#include "cli/prompt.h"
#include "cli/route_picture.h"

#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"
#include "moebius/routing/capacity.h"

namespace moebius {
namespace {

constexpr int64_t kTokensShown = 16;
// Enough to see what splitting does, where a model in this process has no services.
constexpr int32_t kEmbeddedServices = 4;
constexpr int64_t kMaxNodes = 64;
constexpr int64_t kLoadTokens = 32;  // of the answer whose load `experts --model` shows

// What the two commands share: a model or a router, and how many threads.
struct Source {
  const std::string& model;
  const RouterCallFlags& router;
  const std::optional<std::string>& threads;
  bool quiet = false;
};

// A failure that says with which code the process ends.
struct Ending {
  absl::Status status;
  int exit_code = kExitOk;
};

int Report(const Ending& ending, bool json) {
  PrintError(ending.status, json ? OutputForm::kJson : OutputForm::kText);
  return ending.exit_code;
}

Ending OpenBackend(const Source& source, std::unique_ptr<Backend>* backend) {
  const bool has_router = source.router.router.has_value();
  if (has_router == !source.model.empty()) {
    return {
        WithHint(absl::InvalidArgumentError(has_router ? "--model and --router exclude each other"
                                                       : "there is neither a model nor a router"),
                 "give one of --model DIR and --router HOST:PORT"),
        kExitUsage};
  }
  if (has_router) {
    const absl::StatusOr<ClientOptions> options = ParseRouterFlags(source.router);
    if (!options.ok()) return {options.status(), kExitUsage};
    absl::StatusOr<std::unique_ptr<Backend>> opened = OpenRouter(*options);
    if (!opened.ok()) return {opened.status(), kExitFailed};
    *backend = *std::move(opened);
    return {};
  }
  EmbeddedOptions options;
  options.model_path = source.model;
  if (source.threads.has_value()) {
    const absl::StatusOr<int64_t> threads = ParseInteger("--threads", *source.threads);
    if (!threads.ok()) return {threads.status(), kExitUsage};
    if (*threads < 1 || *threads > 1024) {
      return {absl::InvalidArgumentError("--threads must be from 1 to 1024"), kExitUsage};
    }
    options.num_threads = static_cast<int>(*threads);
  }
  absl::StatusOr<std::unique_ptr<Backend>> opened = OpenEmbedded(options, source.quiet);
  if (!opened.ok()) return {opened.status(), ExitCodeOfOpen(opened.status())};
  *backend = *std::move(opened);
  return {};
}

absl::StatusOr<RouteRequest> ParseRoute(const RouteFlags& flags) {
  MOEBIUS_RETURN_IF_ERROR(CheckOnePrompt({flags.prompt, flags.prompt_file, flags.prompt_ids}));
  RouteRequest request;
  if (!flags.layer.has_value()) {
    return WithHint(absl::InvalidArgumentError("there is no layer"), "give --layer N, from 0");
  }
  const auto read = [](absl::string_view flag, const std::string& text) -> absl::StatusOr<int32_t> {
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t value, ParseInteger(flag, text));
    if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat(flag, " is out of range: ", text));
    }
    return static_cast<int32_t>(value);
  };
  MOEBIUS_ASSIGN_OR_RETURN(request.layer, read("--layer", *flags.layer));
  if (flags.experts.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(request.num_services, read("--experts", *flags.experts));
  } else if (!flags.router.router.has_value()) {
    request.num_services = kEmbeddedServices;
  }
  return request;
}

absl::StatusOr<RouteView> ParseView(const RouteFlags& flags) {
  RouteView view;
  view.max_tokens = flags.all ? std::numeric_limits<int64_t>::max() : kTokensShown;
  if (flags.nodes.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t nodes, ParseInteger("--nodes", *flags.nodes));
    if (nodes < 1 || nodes > kMaxNodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("--nodes is ", nodes, ", not in [1, ", kMaxNodes, "]"));
    }
    view.num_nodes = static_cast<int32_t>(nodes);
  }
  if (flags.capacity_factor.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(view.capacity_factor,
                             ParseNumber("--capacity-factor", *flags.capacity_factor));
    CapacityPolicy policy;
    policy.factor = view.capacity_factor;
    MOEBIUS_RETURN_IF_ERROR(ValidateCapacity(policy));
  }
  return view;
}

// Runs one answer, so that there is a load to show.
absl::Status RunOneAnswer(const ExpertsFlags& flags, const Prompt& prompt, Backend& backend) {
  GenerateRequest request;
  MOEBIUS_ASSIGN_OR_RETURN(request.token_ids, TokenIdsOf(prompt, backend.tokenizer()));
  request.max_tokens = kLoadTokens;
  if (flags.max_tokens.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(request.max_tokens, ParseInteger("--max-tokens", *flags.max_tokens));
  }
  InterruptScope interrupt;
  return backend.Generate(request,
                          [](const GenerateEvent*) { return !InterruptScope::Requested(); });
}

}  // namespace

int RunRoute(const RouteFlags& flags) {
  absl::StatusOr<RouteRequest> request = ParseRoute(flags);
  if (!request.ok()) return Report({request.status(), kExitUsage}, flags.json);
  const absl::StatusOr<RouteView> view = ParseView(flags);
  if (!view.ok()) return Report({view.status(), kExitUsage}, flags.json);
  const absl::StatusOr<Prompt> prompt =
      ReadPrompt({flags.prompt, flags.prompt_file, flags.prompt_ids});
  if (!prompt.ok()) return Report({prompt.status(), kExitFailed}, flags.json);
  std::unique_ptr<Backend> backend;
  const Ending opened =
      OpenBackend({flags.model, flags.router, flags.threads, flags.quiet || flags.json}, &backend);
  if (backend == nullptr) return Report(opened, flags.json);
  absl::StatusOr<std::vector<int64_t>> ids = TokenIdsOf(*prompt, backend->tokenizer());
  if (!ids.ok()) return Report({ids.status(), kExitFailed}, flags.json);
  request->token_ids = *std::move(ids);
  const absl::StatusOr<RouteAnswer> answer = backend->Route(*request);
  if (!answer.ok()) return Report({answer.status(), kExitFailed}, flags.json);
  const std::string out =
      flags.json
          ? FormatRouteJson(*answer, flags.capacity_factor ? view->capacity_factor : 0) + "\n"
          : FormatRoutePicture(*answer, backend->model(), backend->tokenizer(), *view);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return kExitOk;
}

int RunExperts(const ExpertsFlags& flags) {
  const bool has_prompt =
      flags.prompt.has_value() || flags.prompt_file.has_value() || flags.prompt_ids.has_value();
  if (flags.router.router.has_value() && has_prompt) {
    return Report({WithHint(absl::InvalidArgumentError(
                                "a router's load is what it has served: a prompt plays no part"),
                            "leave the prompt out, or give --model DIR instead of --router"),
                   kExitUsage},
                  flags.json);
  }
  absl::StatusOr<Prompt> prompt = Prompt();
  if (!flags.router.router.has_value()) {
    const PromptFlags typed{flags.prompt, flags.prompt_file, flags.prompt_ids};
    const absl::Status one = CheckOnePrompt(typed);
    if (!one.ok()) return Report({one, kExitUsage}, flags.json);
    prompt = ReadPrompt(typed);
    if (!prompt.ok()) return Report({prompt.status(), kExitFailed}, flags.json);
  }
  std::unique_ptr<Backend> backend;
  const Ending opened =
      OpenBackend({flags.model, flags.router, flags.threads, flags.quiet || flags.json}, &backend);
  if (backend == nullptr) return Report(opened, flags.json);
  if (has_prompt) {
    const absl::Status answered = RunOneAnswer(flags, *prompt, *backend);
    if (!answered.ok()) return Report({answered, kExitFailed}, flags.json);
  }
  const absl::StatusOr<ExpertLoadTable> table = backend->GetExpertLoad();
  if (!table.ok()) return Report({table.status(), kExitFailed}, flags.json);
  const std::string out = flags.json ? FormatExpertLoadJson(*table) + "\n" : FormatHeatMap(*table);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return kExitOk;
}

}  // namespace moebius
