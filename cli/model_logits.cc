// SPDX-License-Identifier: Apache-2.0
#include "cli/model_logits.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/arguments.h"

#include "moebius/base/error.h"
#include "moebius/base/executor.h"
#include "moebius/base/status.h"
#include "moebius/model/checkpoint.h"
#include "node/embedded.h"
#include "node/forced_logits.h"
#include "node/logits_file.h"
#include "node/reference_model.h"

namespace moebius {
namespace {

std::optional<GroupFill> GroupFillOf(const ModelLogitsOptions& options) {
  if (options.group_fill.empty()) return std::nullopt;
  return options.group_fill == "zero" ? GroupFill::kZero : GroupFill::kNegativeInfinity;
}

absl::StatusOr<ForcedLogits> ComputeReference(const ModelLogitsOptions& options,
                                              const std::vector<int64_t>& token_ids) {
  CheckpointOptions checkpoint_options;
  checkpoint_options.config_file = options.config_file;
  checkpoint_options.reads_as_stored = true;
  checkpoint_options.numerics.group_fill = GroupFillOf(options);
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<const Checkpoint> checkpoint,
                           Checkpoint::Open(options.model, checkpoint_options));
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<const ReferenceModel> model,
                           ReferenceModel::Load(*checkpoint));
  Executor executor(options.threads > 0 ? options.threads : DefaultNumThreads());
  return ForwardReference(*model, executor, token_ids, /*rows=*/{});
}

absl::StatusOr<ForcedLogits> ComputeFast(const ModelLogitsOptions& options,
                                         const std::vector<int64_t>& token_ids) {
  EmbeddedOptions embedded_options;
  embedded_options.model_path = options.model;
  embedded_options.config_file = options.config_file;
  embedded_options.num_threads = options.threads;
  embedded_options.group_fill = GroupFillOf(options);
  embedded_options.convert_to_bf16 = options.dtype == "bf16";
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<EmbeddedNode> node,
                           EmbeddedNode::Open(embedded_options));
  return node->TeacherForced(token_ids);
}

}  // namespace

CLI::App* AddModelLogits(CLI::App& model_command, ModelLogitsOptions& options) {
  CLI::App* command = model_command.add_subcommand(
      "logits", "Write logits and chosen experts of given token ids to a file");
  command->add_option("--model", options.model, "Model folder (config.json and safetensors)")
      ->required();
  command->add_option("--prompt-ids", options.prompt_ids, "Token ids: 1,2,3 or a file")->required();
  command->add_option("--out", options.out, "The safetensors file to write")->required();
  command->add_option("--compute", options.compute, "fp32 throughout, or what serves")
      ->check(CLI::IsMember({"reference", "fast"}))
      ->capture_default_str();
  command->add_option("--group-fill", options.group_fill, "Scores outside the kept groups")
      ->check(CLI::IsMember({"neg-inf", "zero"}));
  command->add_option("--config", options.config_file, "Read this instead of the config.json");
  command
      ->add_option("--dtype", options.dtype, "bf16: round F16 and F32 weights for --compute=fast")
      ->check(CLI::IsMember({"bf16"}));
  command->add_option("--threads", options.threads, "Threads; all that this process may use")
      ->check(CLI::Range(1, 1024));
  return command;
}

absl::Status RunModelLogits(const ModelLogitsOptions& options) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<int64_t> token_ids, ReadPromptIds(options.prompt_ids));
  if (token_ids.empty()) {
    return WithHint(absl::InvalidArgumentError("--prompt-ids holds no token ids"),
                    "give at least one, for instance --prompt-ids 256,72,105");
  }
  MOEBIUS_ASSIGN_OR_RETURN(const ForcedLogits forced, options.compute == "fast"
                                                          ? ComputeFast(options, token_ids)
                                                          : ComputeReference(options, token_ids));
  MOEBIUS_RETURN_IF_ERROR(WriteLogitsFile(forced, options.out));
  absl::PrintF("%s: logits [%d, %d] fp32, experts and weights [%d, %d] of %d MoE layers (%s)\n",
               options.out, forced.num_tokens, forced.logits.width(), forced.num_tokens,
               forced.top_k, forced.layers.size(), options.compute);
  return absl::OkStatus();
}

}  // namespace moebius
