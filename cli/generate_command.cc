// SPDX-License-Identifier: Apache-2.0
#include "cli/generate_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/answer.h"
#include "cli/arguments.h"
#include "cli/backend.h"
#include "cli/error_output.h"
#include "cli/interrupt.h"
#include "cli/prompt.h"
#include "cli/router_flags.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"
#include "moebius/model/json.h"
#include "moebius/routing/capacity.h"
#include "moebius/telemetry/trace/trace_context.h"
#include "router_service/sampler.h"

namespace moebius {
namespace {

// Longer prompts are named by their flag in the reproduce line, not spelled out in ids.
constexpr size_t kMaxReproducedIds = 512;

absl::Status ReadInto(const std::optional<std::string>& text, absl::string_view flag,
                      std::optional<int64_t>* value) {
  if (!text.has_value()) return absl::OkStatus();
  MOEBIUS_ASSIGN_OR_RETURN(*value, ParseInteger(flag, *text));
  return absl::OkStatus();
}

absl::Status ReadInto(const std::optional<std::string>& text, absl::string_view flag,
                      std::optional<double>* value) {
  if (!text.has_value()) return absl::OkStatus();
  MOEBIUS_ASSIGN_OR_RETURN(*value, ParseNumber(flag, *text));
  return absl::OkStatus();
}

// An integer in [low, high]; `*value` stays where the flag is absent.
absl::Status ReadCount(const std::optional<std::string>& text, absl::string_view flag, int64_t low,
                       int64_t high, int64_t* value) {
  std::optional<int64_t> read;
  MOEBIUS_RETURN_IF_ERROR(ReadInto(text, flag, &read));
  if (!read.has_value()) return absl::OkStatus();
  if (*read < low || *read > high) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is ", *read, "; it must be from ", low, " to ", high));
  }
  *value = *read;
  return absl::OkStatus();
}

// "ID:BIAS", one for each flag.
absl::Status ParseLogitBias(const std::vector<std::string>& texts,
                            std::vector<std::pair<int64_t, double>>* logit_bias) {
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    if (colon == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("--logit-bias needs ID:BIAS such as 101:-100, not '", text, "'"));
    }
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t id,
                             ParseInteger("the id of --logit-bias", text.substr(0, colon)));
    MOEBIUS_ASSIGN_OR_RETURN(const double bias,
                             ParseNumber("the bias of --logit-bias", text.substr(colon + 1)));
    logit_bias->emplace_back(id, bias);
  }
  return absl::OkStatus();
}

absl::Status ParseRequest(const GenerateFlags& flags, GenerateRequest* request) {
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.max_tokens, "--max-tokens", &request->max_tokens));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.temperature, "--temperature", &request->temperature));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.top_k, "--top-k", &request->top_k));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.top_p, "--top-p", &request->top_p));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.min_p, "--min-p", &request->min_p));
  MOEBIUS_RETURN_IF_ERROR(
      ReadInto(flags.repetition_penalty, "--repetition-penalty", &request->repetition_penalty));
  MOEBIUS_RETURN_IF_ERROR(
      ReadInto(flags.presence_penalty, "--presence-penalty", &request->presence_penalty));
  MOEBIUS_RETURN_IF_ERROR(
      ReadInto(flags.frequency_penalty, "--frequency-penalty", &request->frequency_penalty));
  MOEBIUS_RETURN_IF_ERROR(ParseLogitBias(flags.logit_bias, &request->logit_bias));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.logprobs, "--logprobs", &request->logprobs));
  int64_t priority = 0;
  MOEBIUS_RETURN_IF_ERROR(ReadCount(flags.priority, "--priority", INT32_MIN, INT32_MAX, &priority));
  request->priority = static_cast<int32_t>(priority);
  if (flags.deadline.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(request->deadline, ParseTimeout("--deadline", *flags.deadline));
  }
  request->request_id = flags.request_id.value_or("");
  if (flags.traceparent.has_value() && !ParseTraceparent(*flags.traceparent).has_value()) {
    return WithHint(absl::InvalidArgumentError("--traceparent is no trace context of W3C"),
                    "it looks like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  }
  request->traceparent = flags.traceparent.value_or("");
  if (flags.seed.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(request->seed, ParseUnsigned("--seed", *flags.seed));
  }
  for (const std::string& id : flags.stop_token_ids) {
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t value, ParseInteger("--stop-token-id", id));
    request->stop_token_ids.push_back(value);
  }
  request->stop = flags.stop;
  request->ignore_eos = flags.ignore_eos;
  return absl::OkStatus();
}

absl::Status ParseNode(const GenerateFlags& flags, EmbeddedOptions* node) {
  node->model_path = flags.model;
  int64_t threads = 0;
  MOEBIUS_RETURN_IF_ERROR(ReadCount(flags.threads, "--threads", 1, 1024, &threads));
  node->num_threads = static_cast<int>(threads);
  if (flags.tier.has_value()) {
    node->tier = ParseTier(*flags.tier);
    if (!node->tier.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tier is '", *flags.tier, "'; it must be portable, avx2, avx512, avx512bf16 or amx"));
    }
  }
  if (flags.span.has_value()) {
    int64_t span = 0;
    MOEBIUS_RETURN_IF_ERROR(ReadCount(flags.span, "--span", 32, int64_t{1} << 20, &span));
    node->span = static_cast<int32_t>(span);
  }
  if (flags.group_fill.has_value()) {
    if (*flags.group_fill != "neg-inf" && *flags.group_fill != "zero") {
      return absl::InvalidArgumentError(
          absl::StrCat("--group-fill is '", *flags.group_fill, "'; it must be neg-inf or zero"));
    }
    node->group_fill =
        *flags.group_fill == "zero" ? GroupFill::kZero : GroupFill::kNegativeInfinity;
  }
  node->attention_sum = flags.attention_sum;
  node->attention_layout = flags.attention_layout;
  if (flags.dtype.has_value()) {
    if (*flags.dtype != "bf16") {
      return absl::InvalidArgumentError(
          absl::StrCat("--dtype is '", *flags.dtype, "'; it must be bf16"));
    }
    node->convert_to_bf16 = true;
  }
  if (flags.kv_budget.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(node->kv_budget_bytes, ParseBytes("--kv-budget", *flags.kv_budget));
  }
  MOEBIUS_RETURN_IF_ERROR(
      ReadCount(flags.chunk, "--chunk", 1, node->row_budget, &node->chunk_rows));
  int64_t pipelines = 1;
  MOEBIUS_RETURN_IF_ERROR(
      ReadCount(flags.expert_pipelines, "--expert-pipelines", 1, 64, &pipelines));
  node->num_expert_pipelines = static_cast<int>(pipelines);
  MOEBIUS_ASSIGN_OR_RETURN(node->capacity, ParseCapacity(TextOf(flags.capacity)));
  MOEBIUS_ASSIGN_OR_RETURN(node->packed_cache, ParsePackedCache(flags.packed_cache));
  return absl::OkStatus();
}

// What no model would take, before one is loaded.
absl::Status CheckRequest(const GenerateRequest& request) {
  SamplingParams sampling;
  sampling.temperature = request.temperature.value_or(sampling.temperature);
  sampling.top_k = request.top_k.value_or(sampling.top_k);
  sampling.top_p = request.top_p.value_or(sampling.top_p);
  sampling.min_p = request.min_p.value_or(sampling.min_p);
  sampling.repetition_penalty = request.repetition_penalty.value_or(sampling.repetition_penalty);
  sampling.presence_penalty = request.presence_penalty.value_or(sampling.presence_penalty);
  sampling.frequency_penalty = request.frequency_penalty.value_or(sampling.frequency_penalty);
  sampling.num_logprobs = request.logprobs.value_or(0);
  return ValidateSamplingParams(sampling, std::numeric_limits<int64_t>::max());
}

PromptFlags PromptOf(const GenerateFlags& flags) {
  return {flags.prompt, flags.prompt_file, flags.prompt_ids};
}

// A model in this process or a router; what is a router's to decide cannot be asked of it.
absl::Status CheckWhoAnswers(const GenerateFlags& flags) {
  if (!flags.router.router.has_value()) {
    if (!flags.model.empty()) return absl::OkStatus();
    return WithHint(absl::InvalidArgumentError("there is neither a model nor a router"),
                    "give one of --model DIR and --router HOST:PORT");
  }
  const std::pair<absl::string_view, bool> local[] = {
      {"--model", !flags.model.empty()},
      {"--threads", flags.threads.has_value()},
      {"--tier", flags.tier.has_value()},
      {"--span", flags.span.has_value()},
      {"--group-fill", flags.group_fill.has_value()},
      {"--attention-sum", flags.attention_sum.has_value()},
      {"--attention-layout", flags.attention_layout.has_value()},
      {"--dtype", flags.dtype.has_value()},
      {"--kv-budget", flags.kv_budget.has_value()},
      {"--chunk", flags.chunk.has_value()},
      {"--expert-pipelines", flags.expert_pipelines.has_value()}};
  std::vector<absl::string_view> given;
  for (const auto& [flag, is_given] : local) {
    if (is_given) given.push_back(flag);
  }
  for (const auto& [flag, value] : NamesOf(flags.capacity)) {
    if (value->has_value()) given.push_back(flag);
  }
  for (const auto& [flag, value] : NamesOf(flags.packed_cache)) {
    if (value->has_value()) given.push_back(flag);
  }
  if (given.empty()) return absl::OkStatus();
  return WithHint(absl::InvalidArgumentError(absl::StrCat(
                      given[0], " cannot be given with --router: the router has decided it")),
                  "leave one of the two out");
}

int UsageError(const absl::Status& status, OutputForm form) {
  PrintError(status, form);
  return kExitUsage;
}

std::string FormatReproduceLine(const GenerateFlags& flags, const std::vector<int64_t>& prompt_ids,
                                const Answer& answer) {
  const GenerateEvent& last = answer.last();
  const SamplingParams& sampling = last.sampling;
  std::string line = absl::StrCat(
      "moebius generate ",
      flags.router.router.has_value() ? absl::StrCat("--router ", ShellQuote(*flags.router.router))
                                      : absl::StrCat("--model ", ShellQuote(flags.model)),
      " --seed ", sampling.seed, " --temperature ", FormatNumber(sampling.temperature));
  if (sampling.temperature > 0) {
    absl::StrAppend(&line, " --top-p ", FormatNumber(sampling.top_p), " --top-k ", sampling.top_k);
  }
  // Off where they are not said, unless the model has a default.
  struct RarelySet {
    absl::string_view flag;
    double value;
    double off;
    bool is_given;
  };
  const RarelySet rarely_set[] = {{" --min-p ", sampling.min_p, 0, flags.min_p.has_value()},
                                  {" --repetition-penalty ", sampling.repetition_penalty, 1,
                                   flags.repetition_penalty.has_value()},
                                  {" --presence-penalty ", sampling.presence_penalty, 0, false},
                                  {" --frequency-penalty ", sampling.frequency_penalty, 0, false}};
  for (const RarelySet& setting : rarely_set) {
    if (setting.value != setting.off || setting.is_given) {
      absl::StrAppend(&line, setting.flag, FormatNumber(setting.value));
    }
  }
  for (const std::string& bias : flags.logit_bias) {
    absl::StrAppend(&line, " --logit-bias ", ShellQuote(bias));
  }
  // An answer that was cut short comes again when it is asked for as long as it got.
  const bool cut = last.finish_reason == FinishReason::kAbort && last.completion_tokens > 0;
  absl::StrAppend(&line, " --max-tokens ", cut ? last.completion_tokens : last.max_tokens);
  for (const std::string& stop : flags.stop) absl::StrAppend(&line, " --stop ", ShellQuote(stop));
  for (const std::string& id : flags.stop_token_ids) {
    absl::StrAppend(&line, " --stop-token-id ", id);
  }
  if (flags.ignore_eos) line += " --ignore-eos";
  if (flags.span.has_value()) absl::StrAppend(&line, " --span ", *flags.span);
  if (flags.group_fill.has_value()) absl::StrAppend(&line, " --group-fill ", *flags.group_fill);
  if (flags.attention_sum.has_value()) {
    absl::StrAppend(&line, " --attention-sum ", *flags.attention_sum);
  }
  if (flags.attention_layout.has_value()) {
    absl::StrAppend(&line, " --attention-layout ", *flags.attention_layout);
  }
  if (flags.dtype.has_value()) absl::StrAppend(&line, " --dtype ", *flags.dtype);
  for (const auto& [flag, value] : NamesOf(flags.capacity)) {
    if (value->has_value()) absl::StrAppend(&line, " ", flag, " ", **value);
  }
  if (prompt_ids.size() <= kMaxReproducedIds) {
    absl::StrAppend(&line, " --prompt-ids ", absl::StrJoin(prompt_ids, ","));
  } else if (flags.prompt_ids.has_value()) {
    absl::StrAppend(&line, " --prompt-ids ", ShellQuote(*flags.prompt_ids));
  } else if (flags.prompt_file.has_value()) {
    absl::StrAppend(&line, " --prompt-file ", ShellQuote(*flags.prompt_file));
  } else {
    absl::StrAppend(&line, " --prompt ", ShellQuote(*flags.prompt));
  }
  absl::StrAppend(&line, "  # logits ", last.logits_hash);
  return line;
}

// Text of the answer on stdout as it comes. What would drive a terminal is shown, not obeyed.
class TextOutput {
 public:
  void Write(const std::string& text) {
    if (text.empty()) return;
    const std::string shown = is_terminal_ ? EscapeControls(text) : text;
    std::fwrite(shown.data(), 1, shown.size(), stdout);
    std::fflush(stdout);
    ends_line_ = text.back() == '\n';
  }
  void EndLine() {
    if (!ends_line_) Write("\n");
  }
  absl::Status status() const {
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot write the answer: ", std::strerror(errno)));
  }

 private:
  const bool is_terminal_ = isatty(STDOUT_FILENO) == 1;
  bool ends_line_ = true;
};

// Reads the answer to its end; Ctrl-C ends it early. Text goes to `output` unless that is null.
absl::Status ReadAnswer(const GenerateRequest& request, Backend& backend, bool quiet,
                        Answer* answer, TextOutput* output) {
  Progress progress("reading the prompt", quiet);
  return backend.Generate(request, [&](const GenerateEvent* event) {
    if (event == nullptr) return !InterruptScope::Requested();
    const std::string text = answer->Add(*event);
    if (event->completion_tokens == 0 && !event->finished) {
      progress.Update(event->prefilled_tokens, event->prompt_tokens,
                      absl::StrCat(FormatCount(event->prefilled_tokens), " of ",
                                   FormatCount(event->prompt_tokens), " tokens"));
    } else {
      progress.End();
      if (output != nullptr) output->Write(text);
    }
    return !InterruptScope::Requested();
  });
}

void PrintClosing(const GenerateFlags& flags, const std::vector<int64_t>& prompt_ids,
                  const Backend& backend, const Answer& answer) {
  const AnswerOrigin origin = backend.origin();
  std::string lines = FormatLogprobLines(answer, backend.tokenizer());
  if (flags.verbose) {
    lines += FormatTimeLines(answer, origin);
    absl::StrAppend(&lines, "config ", origin.config_hash, "  model ", origin.model_hash,
                    origin.details.empty() ? "" : "  ", origin.details, "\n");
    if (!origin.load.empty()) absl::StrAppend(&lines, "loaded ", origin.load, "\n");
  }
  if (!flags.quiet) {
    absl::StrAppend(&lines, FormatClosingLine(answer, origin), "\n", FormatHashLine(answer), "\n",
                    "reproduce: ", FormatReproduceLine(flags, prompt_ids, answer), "\n");
  }
  std::fwrite(lines.data(), 1, lines.size(), stderr);
}

int Fail(const absl::Status& status, OutputForm form) {
  PrintError(status, form);
  return kExitFailed;
}

}  // namespace

absl::StatusOr<GenerateArguments> ParseGenerateFlags(const GenerateFlags& flags) {
  GenerateArguments arguments;
  MOEBIUS_RETURN_IF_ERROR(ParseRequest(flags, &arguments.request));
  MOEBIUS_RETURN_IF_ERROR(CheckWhoAnswers(flags));
  if (flags.router.router.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(arguments.router, ParseRouterFlags(flags.router));
  } else {
    MOEBIUS_RETURN_IF_ERROR(ParseNode(flags, &arguments.node));
  }
  MOEBIUS_RETURN_IF_ERROR(CheckOnePrompt(PromptOf(flags)));
  return arguments;
}

int RunGenerate(const GenerateFlags& flags) {
  const OutputForm form = flags.json ? OutputForm::kJson : OutputForm::kText;
  absl::StatusOr<GenerateArguments> arguments = ParseGenerateFlags(flags);
  if (!arguments.ok()) return UsageError(arguments.status(), form);

  const absl::StatusOr<Prompt> prompt = ReadPrompt(PromptOf(flags));
  if (!prompt.ok()) return Fail(prompt.status(), form);
  if (const absl::Status request = CheckRequest(arguments->request); !request.ok()) {
    return Fail(request, form);
  }

  const absl::StatusOr<std::unique_ptr<Backend>> backend =
      arguments->router.has_value() ? OpenRouter(*arguments->router)
                                    : OpenEmbedded(arguments->node, flags.quiet);
  if (!backend.ok()) {
    PrintError(backend.status(), form);
    return arguments->router.has_value() ? kExitFailed : ExitCodeOfOpen(backend.status());
  }
  const Tokenizer* const tokenizer = (*backend)->tokenizer();
  const absl::StatusOr<std::vector<int64_t>> prompt_ids = TokenIdsOf(*prompt, tokenizer);
  if (!prompt_ids.ok()) return Fail(prompt_ids.status(), form);
  arguments->request.token_ids = *prompt_ids;

  InterruptScope interrupt;
  TextOutput output;
  Answer answer(tokenizer);
  const absl::Status status = ReadAnswer(arguments->request, **backend, flags.quiet, &answer,
                                         flags.json ? nullptr : &output);
  if (!flags.json) output.EndLine();
  if (!status.ok()) return Fail(status, form);
  if (flags.json) output.Write(FormatAnswerJson(answer, (*backend)->origin()) + "\n");
  if (const absl::Status written = output.status(); !written.ok()) return Fail(written, form);
  if (!flags.json || flags.verbose) PrintClosing(flags, *prompt_ids, **backend, answer);
  return kExitOk;
}

}  // namespace moebius
