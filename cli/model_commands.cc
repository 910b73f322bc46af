// SPDX-License-Identifier: Apache-2.0
#include "cli/model_commands.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/arguments.h"
#include "cli/model_inspect.h"
#include "cli/model_verify.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/config_parser.h"
#include "moebius/model/families/family.h"
#include "moebius/model/json.h"
#include "moebius/model/model_shapes.h"
#include "moebius/model/random_checkpoint.h"

namespace moebius {
namespace {

constexpr int64_t kMostFlag = int64_t{1} << 40;  // a count on the command line
constexpr int64_t kMostScale = 1'000'000;

/// One flag's text and where its value goes; empty text leaves the value alone.
struct IntegerFlag {
  const char* name;
  const std::string& text;
  int64_t low;
  int64_t& value;
};

absl::Status ReadFlags(const std::vector<IntegerFlag>& flags) {
  for (const IntegerFlag& flag : flags) {
    if (flag.text.empty()) continue;
    const absl::StatusOr<int64_t> value = ParseInteger(flag.name, flag.text);
    if (!value.ok()) return AsUsageError(value.status());
    if (*value < flag.low || *value > kMostFlag) {
      return AsUsageError(absl::InvalidArgumentError(
          absl::StrCat(flag.name, " must be at least ", flag.low, ", it is ", flag.text)));
    }
    flag.value = *value;
  }
  return absl::OkStatus();
}

void Print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

/// "12.1 of 20.7 MB".
std::string BytesDone(uint64_t done, uint64_t total) {
  return absl::StrCat(FormatBytes(static_cast<int64_t>(done)), " of ",
                      FormatBytes(static_cast<int64_t>(total)));
}

absl::StatusOr<Family> ParseFamily(const std::string& name) {
  for (const FamilyEntry& entry : FamilyTable()) {
    if (entry.model_type == name) return entry.family;
  }
  return AsUsageError(absl::InvalidArgumentError(
      absl::StrCat("--family is \"", name,
                   "\", it must be deepseek_v3, kimi_k2, glm4_moe, qwen3_moe, olmoe or "
                   "mixtral")));
}

/// "128x64".
absl::Status ReadWeightBlock(const ModelMakeOptions& flags, RandomCheckpointOptions& options) {
  const std::string& text = flags.weight_block;
  if (text.empty()) return absl::OkStatus();
  if (options.dtype != DType::kF8E4M3) {
    return AsUsageError(absl::InvalidArgumentError("--weight-block needs --dtype fp8"));
  }
  const size_t cross = text.find('x');
  const std::string rows = text.substr(0, cross);
  const std::string columns = cross == std::string::npos ? "" : text.substr(cross + 1);
  if (rows.empty() || columns.empty()) {
    return AsUsageError(absl::InvalidArgumentError(
        absl::StrCat("--weight-block is \"", text, "\", it must be ROWSxCOLUMNS, as 128x128")));
  }
  return ReadFlags({{"--weight-block", rows, 1, options.block_rows},
                    {"--weight-block", columns, 1, options.block_columns}});
}

absl::StatusOr<RandomCheckpointOptions> ParseMakeFlags(const ModelMakeOptions& flags) {
  RandomCheckpointOptions options;
  if (!flags.like.empty()) {
    const absl::StatusOr<RandomCheckpointOptions> shape = FindModelShape(flags.like);
    if (!shape.ok()) return AsUsageError(WithContext(shape.status(), "--like"));
    options = *shape;
    int64_t scale = 1;
    MOEBIUS_RETURN_IF_ERROR(ReadFlags({{"--scale", flags.scale, 1, scale}}));
    if (scale > kMostScale) {
      return AsUsageError(absl::InvalidArgumentError(
          absl::StrCat("--scale must be at most ", kMostScale, ", it is ", flags.scale)));
    }
    options = ScaleShape(options, scale);
  } else if (!flags.scale.empty()) {
    return AsUsageError(absl::InvalidArgumentError("--scale is nothing without --like"));
  }
  if (!flags.family.empty()) {
    MOEBIUS_ASSIGN_OR_RETURN(options.family, ParseFamily(flags.family));
  }
  MOEBIUS_RETURN_IF_ERROR(ReadFlags(
      {{"--layers", flags.layers, 1, options.num_layers},
       {"--hidden", flags.hidden, 1, options.hidden_size},
       {"--vocab", flags.vocab, 1, options.vocab_size},
       {"--positions", flags.positions, 1, options.max_positions},
       {"--heads", flags.heads, 1, options.num_heads},
       {"--kv-heads", flags.kv_heads, 1, options.num_kv_heads},
       {"--head-dim", flags.head_dim, 2, options.head_dim},
       {"--experts", flags.experts, 1, options.num_experts},
       {"--top-k", flags.top_k, 1, options.top_k},
       {"--groups", flags.groups, 1, options.num_groups},
       {"--kept-groups", flags.kept_groups, 1, options.num_kept_groups},
       {"--shared", flags.shared, 0, options.num_shared_experts},
       {"--intermediate", flags.intermediate, 1, options.moe_intermediate_size},
       {"--dense-layers", flags.dense_layers, 0, options.num_dense_layers},
       {"--dense-intermediate", flags.dense_intermediate, 1, options.dense_intermediate_size},
       {"--shards", flags.shards, 1, options.num_shards}}));
  // The first layers of a published model, and a sparse one among them.
  if (!flags.like.empty() && flags.dense_layers.empty()) {
    options.num_dense_layers = std::min(options.num_dense_layers, options.num_layers - 1);
  }
  if (!flags.seed.empty()) {
    const absl::StatusOr<uint64_t> seed = ParseUnsigned("--seed", flags.seed);
    if (!seed.ok()) return AsUsageError(seed.status());
    options.seed = *seed;
  }
  if (flags.dtype == "f32") {
    options.dtype = DType::kF32;
  } else if (flags.dtype == "fp8") {
    options.dtype = DType::kF8E4M3;
  } else if (flags.dtype == "f16") {
    options.dtype = DType::kF16;
  } else if (!flags.dtype.empty() && flags.dtype != "bf16") {
    return AsUsageError(absl::InvalidArgumentError(
        absl::StrCat("--dtype is \"", flags.dtype, "\", it must be bf16, f16, f32 or fp8")));
  }
  MOEBIUS_RETURN_IF_ERROR(ReadWeightBlock(flags, options));
  options.tied_head = flags.tied;
  options.byte_tokenizer = !flags.no_tokenizer;
  return options;
}

}  // namespace

CLI::App* AddModelInspect(CLI::App& model_command, ModelInspectOptions& options) {
  CLI::App* command = model_command.add_subcommand(
      "inspect", "What is in a model's folder, and what each host needs to run it");
  command->add_option("--model", options.model, "Folder with config.json and weights")
      ->required()
      ->type_name("DIR");
  command->add_option("--config", options.config_file, "Read this instead of config.json")
      ->type_name("FILE");
  command->add_option("--dtype", options.dtype, "bf16: accept F16 and F32 weights by rounding")
      ->type_name("TYPE");
  command
      ->add_option("--kv-tokens", options.kv_tokens,
                   "Positions in the KV pool (default: the model's context)")
      ->type_name("N");
  command->add_option("--experts", options.experts, "Expert services (default 4)")->type_name("N");
  command->add_option("--attention", options.attention, "Attention ranks (default 1)")
      ->type_name("N");
  command
      ->add_option("--replicas", options.replicas,
                   "Services that hold each routed expert (default 2, at most --experts)")
      ->type_name("N");
  command->add_flag("--json", options.json, "Print one JSON object");
  return command;
}

CLI::App* AddModelVerify(CLI::App& model_command, ModelVerifyOptions& options) {
  CLI::App* command = model_command.add_subcommand(
      "verify", "Read every byte of a model's folder: checksums, NaN, zeros, structure");
  command->add_option("--model", options.model, "Folder with config.json and weights")
      ->required()
      ->type_name("DIR");
  command->add_flag("--json", options.json, "Print one JSON object");
  command->add_flag("--quiet", options.quiet, "No progress on stderr");
  return command;
}

CLI::App* AddModelMake(CLI::App& model_command, ModelMakeOptions& options) {
  CLI::App* command = model_command.add_subcommand(
      "make", "Write a checkpoint with random weights, the same for the same seed");
  command->add_option("--out", options.out, "Folder to make")->required()->type_name("DIR");
  command
      ->add_option("--family", options.family,
                   "deepseek_v3 (default), kimi_k2, glm4_moe, qwen3_moe, olmoe or mixtral")
      ->type_name("NAME");
  command
      ->add_option("--like", options.like,
                   absl::StrCat("The shape of ", absl::StrJoin(ModelShapeNames(), ", "),
                                "; other flags change it"))
      ->type_name("NAME");
  command
      ->add_option("--scale", options.scale,
                   "Times the weights of --like, by its widths (default 1)")
      ->type_name("N");
  command->add_option("--layers", options.layers, "Layers (default 2)")->type_name("N");
  command->add_option("--hidden", options.hidden, "Hidden size (default 64)")->type_name("N");
  command->add_option("--vocab", options.vocab, "Vocabulary (default 320)")->type_name("N");
  command->add_option("--positions", options.positions, "Context (default 512)")->type_name("N");
  command->add_option("--heads", options.heads, "Query heads (default 4)")->type_name("N");
  command->add_option("--kv-heads", options.kv_heads, "Key heads (default 2; not for MLA)");
  command->add_option("--head-dim", options.head_dim, "Elements of a head (default 16)")
      ->type_name("N");
  command->add_option("--experts", options.experts, "Routed experts of a layer (default 8)")
      ->type_name("N");
  command->add_option("--top-k", options.top_k, "Experts of a token (default 2)")->type_name("N");
  command->add_option("--groups", options.groups, "Expert groups (default 1)")->type_name("N");
  command->add_option("--kept-groups", options.kept_groups, "Groups that a token keeps (default 1)")
      ->type_name("N");
  command->add_option("--shared", options.shared, "Shared experts (default 1 where supported)")
      ->type_name("N");
  command->add_option("--intermediate", options.intermediate, "Width of an expert (default 32)")
      ->type_name("N");
  command->add_option("--dense-layers", options.dense_layers, "Dense layers (default 1 or 0)")
      ->type_name("N");
  command
      ->add_option("--dense-intermediate", options.dense_intermediate,
                   "Width of a dense layer (default 2.5 times an expert's)")
      ->type_name("N");
  command->add_option("--dtype", options.dtype, "bf16 (default), f16, f32 or fp8")
      ->type_name("TYPE");
  command
      ->add_option("--weight-block", options.weight_block,
                   "fp8: rows and columns that share a scale (default 128x128)")
      ->type_name("NxK");
  command->add_option("--shards", options.shards, "Weight files (default: none above 5 GB)")
      ->type_name("N");
  command->add_option("--seed", options.seed, "Seed of the weights (default 0)")->type_name("N");
  command->add_flag("--tied", options.tied, "The output head is the embedding");
  command->add_flag("--no-tokenizer", options.no_tokenizer, "Do not declare the byte tokenizer");
  command->add_flag("--json", options.json, "Print one JSON object");
  command->add_flag("--quiet", options.quiet, "No progress on stderr");
  return command;
}

absl::Status RunModelInspect(const ModelInspectOptions& options) {
  InspectionPlan plan;
  const bool default_replicas = options.replicas.empty();
  MOEBIUS_RETURN_IF_ERROR(ReadFlags({{"--kv-tokens", options.kv_tokens, 0, plan.kv_tokens},
                                     {"--experts", options.experts, 1, plan.num_experts},
                                     {"--attention", options.attention, 1, plan.num_attention},
                                     {"--replicas", options.replicas, 1, plan.num_replicas}}));
  if (default_replicas) plan.num_replicas = plan.num_experts > 1 ? 2 : 1;
  CheckpointOptions checkpoint_options;
  checkpoint_options.config_file = options.config_file;
  if (!options.dtype.empty() && options.dtype != "bf16") {
    return AsUsageError(absl::InvalidArgumentError(
        absl::StrCat("--dtype is '", options.dtype, "'; it must be bf16")));
  }
  checkpoint_options.convert_to_bf16 = options.dtype == "bf16";
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<const Checkpoint> checkpoint,
                           Checkpoint::Open(options.model, checkpoint_options));
  const absl::StatusOr<ModelInspection> inspection = InspectModel(*checkpoint, plan);
  if (!inspection.ok()) return AsUsageError(inspection.status());
  Print(options.json ? FormatInspectionJson(*inspection) + "\n" : FormatInspection(*inspection));
  return absl::OkStatus();
}

absl::Status RunModelVerify(const ModelVerifyOptions& options) {
  Progress progress("verifying", options.quiet);
  const absl::StatusOr<ModelVerification> verification =
      VerifyModel(options.model, [&progress](uint64_t done, uint64_t total) {
        progress.Update(static_cast<int64_t>(done), static_cast<int64_t>(total),
                        BytesDone(done, total));
      });
  progress.End();
  if (!verification.ok()) return verification.status();
  Print(options.json ? FormatVerificationJson(*verification) + "\n"
                     : FormatVerification(*verification));
  if (verification->faults.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(options.model, ": ", verification->faults.size(),
                                          verification->faults.size() == 1 ? " fault" : " faults",
                                          ", the first: ", verification->faults[0]));
}

absl::Status RunModelMake(const ModelMakeOptions& options) {
  MOEBIUS_ASSIGN_OR_RETURN(const RandomCheckpointOptions sizes, ParseMakeFlags(options));
  if (const absl::Status refused = CheckRandomCheckpoint(sizes); !refused.ok()) {
    return AsUsageError(WithContext(refused, "these sizes make no model"));
  }
  Progress progress("writing", options.quiet);
  MOEBIUS_RETURN_IF_ERROR(
      WriteRandomCheckpoint(options.out, sizes, [&progress](uint64_t done, uint64_t total) {
        progress.Update(static_cast<int64_t>(done), static_cast<int64_t>(total),
                        BytesDone(done, total));
      }));
  progress.End();
  CheckpointOptions open;
  open.reads_as_stored = true;
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<const Checkpoint> checkpoint,
                           Checkpoint::Open(options.out, open));
  const uint64_t bytes = checkpoint->directory().total_bytes();
  if (options.json) {
    Json object = Json::Object({});
    object.Set("folder", Json::String(options.out));
    object.Set("family", Json::String(FamilyName(sizes.family)));
    object.Set("num_bytes", Json::LargeInteger(bytes));
    object.Set("model_hash", Json::String(FormatHash64(checkpoint->model_hash())));
    object.Set("seed", Json::LargeInteger(sizes.seed));
    Print(object.ToCanonicalText() + "\n");
  } else {
    Print(absl::StrCat(options.out, ": ", FamilyName(sizes.family), ", ",
                       FormatBytes(static_cast<int64_t>(bytes)), ", seed ", sizes.seed, ", model ",
                       FormatHash64(checkpoint->model_hash()), "\n"));
  }
  return absl::OkStatus();
}

}  // namespace moebius
