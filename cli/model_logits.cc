// SPDX-License-Identifier: Apache-2.0
#include "cli/model_logits.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/arguments.h"
#include "cli/error_output.h"

#include "moebius/base/error.h"
#include "moebius/base/executor.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"
#include "moebius/kernels/tier.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/safetensors_writer.h"
#include "node/embedded.h"
#include "node/forced_logits.h"
#include "node/logits_file.h"
#include "node/reference_model.h"

namespace moebius {
namespace {

/// The flags with every value read.
struct Arguments {
  EmbeddedOptions node;  // of the reference path too, as far as that has them
  bool fast = false;
  std::vector<int64_t> token_ids;
};

// Whether a flag has the first or the second of the two words that it may have.
absl::StatusOr<bool> IsFirst(absl::string_view flag, const std::string& value,
                             absl::string_view first, absl::string_view second) {
  if (value == first) return true;
  if (value == second) return false;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is '", value, "'; it must be ", first, " or ", second));
}

absl::Status ParseFastFlags(const ModelLogitsFlags& flags, EmbeddedOptions& node) {
  if (flags.dtype.has_value()) {
    if (*flags.dtype != "bf16") {
      return absl::InvalidArgumentError(
          absl::StrCat("--dtype is '", *flags.dtype, "'; it must be bf16"));
    }
    node.convert_to_bf16 = true;
  }
  if (flags.span.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t span, ParseInteger("--span", *flags.span));
    if (span < 32 || span > (int64_t{1} << 20)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--span is ", span, "; it must be from 32 to 1048576"));
    }
    node.span = static_cast<int32_t>(span);
  }
  if (flags.tier.has_value()) {
    node.tier = ParseTier(*flags.tier);
    if (!node.tier.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--tier is '", *flags.tier, "'; it must be portable, avx2, avx512, avx512bf16 or amx"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Arguments> ParseFlags(const ModelLogitsFlags& flags) {
  Arguments arguments;
  arguments.node.model_path = flags.model;
  arguments.node.config_file = flags.config.value_or("");
  MOEBIUS_ASSIGN_OR_RETURN(arguments.fast, IsFirst("--compute", flags.compute.value_or("reference"),
                                                   "fast", "reference"));
  if (flags.group_fill.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(const bool zero,
                             IsFirst("--group-fill", *flags.group_fill, "zero", "neg-inf"));
    arguments.node.group_fill = zero ? GroupFill::kZero : GroupFill::kNegativeInfinity;
  }
  arguments.node.num_threads = DefaultNumThreads();
  if (flags.threads.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(const int64_t threads, ParseInteger("--threads", *flags.threads));
    if (threads < 1 || threads > 1024) {
      return absl::InvalidArgumentError(
          absl::StrCat("--threads is ", threads, "; it must be from 1 to 1024"));
    }
    arguments.node.num_threads = static_cast<int>(threads);
  }
  if (!arguments.fast && (flags.dtype || flags.span || flags.tier)) {
    return WithHint(
        absl::InvalidArgumentError("--dtype, --span and --tier mean nothing to the fp32 reference"),
        "add --compute=fast, or leave them out");
  }
  MOEBIUS_RETURN_IF_ERROR(ParseFastFlags(flags, arguments.node));
  MOEBIUS_ASSIGN_OR_RETURN(arguments.token_ids, ReadPromptIds(flags.prompt_ids));
  if (arguments.token_ids.empty()) {
    return WithHint(absl::InvalidArgumentError("--prompt-ids holds no token ids"),
                    "give at least one, for instance --prompt-ids 256,72,105");
  }
  return arguments;
}

// Fails where the model is at fault; what the ids are judged for comes later.
absl::StatusOr<std::unique_ptr<const ReferenceModel>> LoadReference(
    const EmbeddedOptions& options) {
  CheckpointOptions checkpoint_options;
  checkpoint_options.config_file = options.config_file;
  checkpoint_options.reads_as_stored = true;
  checkpoint_options.numerics.group_fill = options.group_fill;
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<const Checkpoint> checkpoint,
                           Checkpoint::Open(options.model_path, checkpoint_options));
  return ReferenceModel::Load(*checkpoint);
}

int Fail(const absl::Status& status, ExitCode code) {
  PrintError(status, OutputForm::kText);
  return code;
}

}  // namespace

int RunModelLogits(const ModelLogitsFlags& flags) {
  const absl::StatusOr<Arguments> arguments = ParseFlags(flags);
  if (!arguments.ok()) return Fail(arguments.status(), kExitUsage);
  // A file that cannot be written would show after all the computing.
  if (const absl::Status target = SafetensorsWriter::CheckTarget(flags.out); !target.ok()) {
    return Fail(target, kExitFailed);
  }
  absl::StatusOr<ForcedLogits> forced = absl::UnknownError("not computed");
  if (arguments->fast) {
    const auto node = EmbeddedNode::Open(arguments->node);
    if (!node.ok()) return Fail(node.status(), ExitCodeOfOpen(node.status()));
    forced = (*node)->TeacherForced(arguments->token_ids);
  } else {
    const auto model = LoadReference(arguments->node);
    if (!model.ok()) return Fail(model.status(), ExitCodeOfOpen(model.status()));
    Executor executor(arguments->node.num_threads);
    forced = ForwardReference(**model, executor, arguments->token_ids, /*rows=*/{});
  }
  if (!forced.ok()) return Fail(forced.status(), kExitFailed);
  const absl::Status written = WriteLogitsFile(*forced, flags.out);
  if (!written.ok()) return Fail(written, kExitFailed);
  absl::PrintF("%s: logits [%d, %d] fp32, experts and weights [%d, %d] of %d MoE layers (%s)\n",
               EscapeControls(flags.out), forced->num_tokens, forced->logits.width(),
               forced->num_tokens, forced->top_k, forced->layers.size(),
               arguments->fast ? "fast" : "reference");
  return kExitOk;
}

}  // namespace moebius
