// SPDX-License-Identifier: Apache-2.0
#include "cli/generate_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/answer.h"
#include "cli/arguments.h"
#include "cli/error_output.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;
// Longer prompts are named by their flag in the reproduce line, not spelled out in ids.
constexpr size_t kMaxReproducedIds = 512;
constexpr absl::Duration kPoll = absl::Milliseconds(50);

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

absl::Status ParseRequest(const GenerateFlags& flags, GenerateRequest* request) {
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.max_tokens, "--max-tokens", &request->max_tokens));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.temperature, "--temperature", &request->temperature));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.top_k, "--top-k", &request->top_k));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.top_p, "--top-p", &request->top_p));
  MOEBIUS_RETURN_IF_ERROR(ReadInto(flags.logprobs, "--logprobs", &request->logprobs));
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
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int64_t>> ReadPrompt(const GenerateFlags& flags,
                                                const Tokenizer* tokenizer) {
  if (flags.prompt_ids.has_value()) return ReadPromptIds(*flags.prompt_ids);
  std::string text;
  if (flags.prompt_file.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(text, ReadInput(*flags.prompt_file, kMaxPromptBytes));
  } else {
    text = *flags.prompt;
  }
  if (tokenizer == nullptr) {
    return WithHint(
        absl::UnimplementedError("this model's folder has no tokenizer that this build reads"),
        "give token ids with --prompt-ids");
  }
  std::vector<int64_t> ids;
  if (const std::optional<int64_t> bos = tokenizer->bos_token_id()) ids.push_back(*bos);
  const std::vector<int64_t> encoded = tokenizer->Encode(text);
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return ids;
}

// A node that cannot be opened is a matter of the model's folder, or of this host.
int ExitCodeOfOpen(const absl::Status& status) {
  const bool host = absl::IsResourceExhausted(status) || absl::IsFailedPrecondition(status);
  return host ? kExitHost : kExitModel;
}

int UsageError(const absl::Status& status, OutputForm form) {
  PrintError(status, form);
  return kExitUsage;
}

std::string FormatReproduceLine(const GenerateFlags& flags, const std::vector<int64_t>& prompt_ids,
                                const Answer& answer) {
  const GenerateEvent& last = answer.last();
  const SamplingParams& sampling = last.sampling;
  std::string line =
      absl::StrCat("moebius generate --model ", ShellQuote(flags.model), " --seed ", sampling.seed,
                   " --temperature ", FormatNumber(sampling.temperature));
  if (sampling.temperature > 0) {
    absl::StrAppend(&line, " --top-p ", FormatNumber(sampling.top_p), " --top-k ", sampling.top_k);
  }
  absl::StrAppend(&line, " --max-tokens ", last.max_tokens);
  for (const std::string& stop : flags.stop) absl::StrAppend(&line, " --stop ", ShellQuote(stop));
  for (const std::string& id : flags.stop_token_ids) {
    absl::StrAppend(&line, " --stop-token-id ", id);
  }
  if (flags.ignore_eos) line += " --ignore-eos";
  if (flags.span.has_value()) absl::StrAppend(&line, " --span ", *flags.span);
  if (flags.group_fill.has_value()) absl::StrAppend(&line, " --group-fill ", *flags.group_fill);
  if (flags.dtype.has_value()) absl::StrAppend(&line, " --dtype ", *flags.dtype);
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

absl::StatusOr<std::unique_ptr<EmbeddedNode>> OpenWithProgress(EmbeddedOptions options,
                                                               bool quiet) {
  Progress progress("loading", quiet);
  options.on_load = [&progress](const LoadProgress& load) {
    progress.Update(
        load.loaded_bytes, load.total_bytes,
        absl::StrCat(FormatBytes(load.loaded_bytes), " of ", FormatBytes(load.total_bytes)));
  };
  return EmbeddedNode::Open(options);
}

// Reads the stream to its end; Ctrl-C cancels it. Text goes to `output` unless that is null.
absl::Status ReadAnswer(GenerateStream& stream, bool quiet, Answer* answer, TextOutput* output) {
  Progress progress("reading the prompt", quiet);
  bool cancelled = false;
  while (!stream.ended()) {
    const std::optional<GenerateEvent> event = stream.Next(kPoll);
    if (InterruptScope::Requested() && !cancelled) {
      stream.Cancel();
      cancelled = true;
    }
    if (!event.has_value()) continue;
    const std::string text = answer->Add(*event);
    if (event->completion_tokens == 0 && !event->finished) {
      progress.Update(event->prefilled_tokens, event->prompt_tokens,
                      absl::StrCat(FormatCount(event->prefilled_tokens), " of ",
                                   FormatCount(event->prompt_tokens), " tokens"));
      continue;
    }
    progress.End();
    if (output != nullptr) output->Write(text);
  }
  return stream.status();
}

void PrintClosing(const GenerateFlags& flags, const std::vector<int64_t>& prompt_ids,
                  const EmbeddedNode& node, const Answer& answer) {
  const EmbeddedInfo info = node.info();
  std::string lines = FormatLogprobLines(answer, node.tokenizer());
  if (flags.verbose) {
    lines += FormatTimeLines(answer);
    absl::StrAppend(&lines, "config ", info.config_hash, "  model ", info.model_hash, "  weights ",
                    FormatBytes(info.weight_bytes), "  KV ", FormatBytes(info.kv_budget_bytes),
                    " = ", FormatCount(info.kv_capacity_tokens), " tokens\n");
  }
  if (!flags.quiet) {
    absl::StrAppend(&lines, FormatClosingLine(answer, info), "\n", FormatHashLine(answer), "\n",
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
  MOEBIUS_RETURN_IF_ERROR(ParseNode(flags, &arguments.node));
  const int sources = (flags.prompt.has_value() ? 1 : 0) + (flags.prompt_file.has_value() ? 1 : 0) +
                      (flags.prompt_ids.has_value() ? 1 : 0);
  if (sources != 1) {
    return WithHint(absl::InvalidArgumentError(sources == 0 ? "there is no prompt"
                                                            : "there is more than one prompt"),
                    "give one of --prompt TEXT, --prompt-file FILE and --prompt-ids IDS");
  }
  return arguments;
}

int RunGenerate(const GenerateFlags& flags) {
  const OutputForm form = flags.json ? OutputForm::kJson : OutputForm::kText;
  absl::StatusOr<GenerateArguments> arguments = ParseGenerateFlags(flags);
  if (!arguments.ok()) return UsageError(arguments.status(), form);

  const absl::StatusOr<std::unique_ptr<EmbeddedNode>> node =
      OpenWithProgress(arguments->node, flags.quiet);
  if (!node.ok()) {
    PrintError(node.status(), form);
    return ExitCodeOfOpen(node.status());
  }
  const absl::StatusOr<std::vector<int64_t>> prompt_ids = ReadPrompt(flags, (*node)->tokenizer());
  if (!prompt_ids.ok()) return Fail(prompt_ids.status(), form);
  arguments->request.token_ids = *prompt_ids;

  InterruptScope interrupt;
  const auto stream = (*node)->Submit(arguments->request);
  if (!stream.ok()) return Fail(stream.status(), form);
  TextOutput output;
  Answer answer((*node)->tokenizer());
  const absl::Status status =
      ReadAnswer(**stream, flags.quiet, &answer, flags.json ? nullptr : &output);
  if (!flags.json) output.EndLine();
  if (!status.ok()) return Fail(status, form);
  if (flags.json) output.Write(FormatAnswerJson(answer, (*node)->info()) + "\n");
  if (const absl::Status written = output.status(); !written.ok()) return Fail(written, form);
  if (!flags.json || flags.verbose) PrintClosing(flags, *prompt_ids, **node, answer);
  return kExitOk;
}

}  // namespace moebius
