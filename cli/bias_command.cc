// SPDX-License-Identifier: Apache-2.0
#include "cli/bias_command.h"

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/arguments.h"
#include "cli/command_flags.h"
#include "cli/error_output.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr int64_t kMaxUpdateBytes = int64_t{16} << 20;

constexpr char kExamples[] =
    R"(The biases of a router's gates, and its balancer that moves them.

Examples:
  moebius bias show --router 127.0.0.1:43121
  moebius bias reset --admin 127.0.0.1:7414)";

constexpr char kShowExamples[] =
    R"(What the balancer does, and how far its biases are from the checkpoint's.

Examples:
  moebius bias show --router 127.0.0.1:43121
  moebius bias show --router 127.0.0.1:43121 --all
  moebius bias show --router 127.0.0.1:43121 --json > biases.json)";

constexpr char kSetExamples[] =
    R"(Take biases over, of the layers that a file names; others stay. From the next step on.

Examples:
  moebius bias set --admin 127.0.0.1:7414 --file biases.json
  moebius bias set --admin 127.0.0.1:7414 --file biases.json --expected-version 12

The address is that of the router's --admin-listen. The file is as `bias show --json` prints it.)";

constexpr char kResetExamples[] =
    R"(Back to the checkpoint's biases, from the next step on.

Examples:
  moebius bias reset --admin 127.0.0.1:7414

The address is that of the router's --admin-listen.)";

Json FloatsJson(const std::vector<float>& values) {
  std::vector<Json> elements;
  for (const float value : values) elements.push_back(Json::Number(value));
  return Json::Array(std::move(elements));
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const absl::StatusOr<ClientOptions>& options) {
  if (!options.ok()) return AsUsageError(options.status());
  return Client::Make(*options);
}

absl::Status Show(const BiasFlags& flags) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           Connect(ParseRouterFlags(flags.router)));
  MOEBIUS_ASSIGN_OR_RETURN(const BiasTable table, client->GetBias());
  if (table.layers.empty()) {
    return WithHint(absl::UnavailableError("the router is not ready: it has no gates yet"),
                    "moebius wait returns when it is");
  }
  const std::string out =
      flags.json ? BiasesJson(table).ToCanonicalText() + "\n" : FormatBiases(table, flags.all);
  std::fwrite(out.data(), 1, out.size(), stdout);
  return absl::OkStatus();
}

absl::Status Update(const BiasFlags& flags, BiasUpdate update) {
  if (flags.expected_version.has_value()) {
    const auto version = ParseUnsigned("--expected-version", *flags.expected_version);
    if (!version.ok()) return AsUsageError(version.status());
    update.expected_version = *version;
  }
  if (!flags.admin.has_value()) {
    return AsUsageError(WithHint(absl::InvalidArgumentError("there is no router to change"),
                                 "give --admin HOST:PORT, the router's --admin-listen"));
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client,
                           Connect(ParseCallFlags("--admin", *flags.admin, flags.router)));
  MOEBIUS_ASSIGN_OR_RETURN(const uint64_t version, client->UpdateBias(update));
  if (flags.json) {
    Json json = Json::Object({});
    json.Set("version", Json::Integer(static_cast<int64_t>(version)));
    absl::PrintF("%s\n", json.ToCanonicalText());
  } else {
    absl::PrintF("version %d is in force from the next step on\n", version);
  }
  return absl::OkStatus();
}

absl::Status Set(const BiasFlags& flags) {
  if (!flags.file.has_value()) {
    return AsUsageError(WithHint(absl::InvalidArgumentError("there are no biases to take over"),
                                 "give --file FILE, as bias show --json prints it"));
  }
  MOEBIUS_ASSIGN_OR_RETURN(const std::string text, ReadInput(*flags.file, kMaxUpdateBytes));
  absl::StatusOr<BiasUpdate> update = ParseBiasUpdate(text, *flags.file);
  if (!update.ok()) return AsUsageError(update.status());
  return Update(flags, *std::move(update));
}

void AddUpdateFlags(CLI::App& command, BiasFlags& flags) {
  AddTextFlags(command, {{"Router", "--admin", "HOST:PORT", &flags.admin,
                          "The router's admin address (its --admin-listen)"},
                         {"Change", "--expected-version", "N", &flags.expected_version,
                          "Change nothing where another version is in force"}});
  AddTlsFlags(command, "Router", &flags.router);
  command.add_flag("--json", flags.json, "One JSON object on stdout")->group("Output");
}

}  // namespace

void AddBiasCommands(CLI::App& app, BiasFlags& flags) {
  CLI::App& bias =
      AddCommand(app, "bias", "Show and change the biases of a router's gates", kExamples);
  CLI::App& show = AddCommand(bias, "show", "Show the biases and the balancer", kShowExamples);
  AddRouterFlags(show, &flags.router);
  show.add_flag("--all", flags.all, "Every bias")->group("Output");
  show.add_flag("--json", flags.json, "One JSON object on stdout")->group("Output");
  CLI::App& set = AddCommand(bias, "set", "Take biases over from a file", kSetExamples);
  AddTextFlags(set, {{"Change", "--file", "FILE", &flags.file, "The biases; - is standard input"}});
  AddUpdateFlags(set, flags);
  AddUpdateFlags(AddCommand(bias, "reset", "Back to the checkpoint's biases", kResetExamples),
                 flags);
}

int RunBiasCommand(const CLI::App& command, const BiasFlags& flags) {
  absl::Status status;
  if (command.got_subcommand("show")) {
    status = Show(flags);
  } else if (command.got_subcommand("set")) {
    status = Set(flags);
  } else if (command.got_subcommand("reset")) {
    BiasUpdate update;
    update.reset = true;
    status = Update(flags, std::move(update));
  } else {
    std::fputs(command.help().c_str(), stdout);
  }
  if (status.ok()) return kExitOk;
  PrintError(status, flags.json ? OutputForm::kJson : OutputForm::kText);
  return IsUsageError(status) ? kExitUsage : kExitFailed;
}

absl::StatusOr<BiasUpdate> ParseBiasUpdate(absl::string_view text, absl::string_view source) {
  const auto refuse = [source](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", what));
  };
  MOEBIUS_ASSIGN_OR_RETURN(const Json json, Json::Parse(text, source));
  const Json* layers = json.Find("layers");
  if (layers == nullptr || layers->kind() != Json::Kind::kArray) {
    return refuse("layers is no array");
  }
  BiasUpdate update;
  for (const Json& entry : layers->elements()) {
    const Json* layer = entry.Find("layer");
    const Json* bias = entry.Find("bias");
    if (layer == nullptr || layer->kind() != Json::Kind::kInteger || layer->integer() < 0 ||
        layer->integer() > INT32_MAX || bias == nullptr || bias->kind() != Json::Kind::kArray) {
      return refuse("an entry of layers has no layer from 0, or no array bias");
    }
    BiasUpdate::Layer& set = update.set.emplace_back();
    set.layer = static_cast<int32_t>(layer->integer());
    for (const Json& value : bias->elements()) {
      if (value.kind() == Json::Kind::kInteger) {
        set.bias.push_back(static_cast<float>(value.integer()));
      } else if (value.kind() == Json::Kind::kNumber) {
        set.bias.push_back(static_cast<float>(value.number()));
      } else {
        return refuse(absl::StrCat("a bias of layer ", set.layer, " is ", value.KindName()));
      }
    }
  }
  return update;
}

std::string FormatBiases(const BiasTable& table, bool all) {
  std::string out =
      absl::StrFormat("balancer %s   version %d   gamma %g   limit %g beside the checkpoint's\n",
                      EscapeControls(table.mode), table.version, table.gamma, table.limit);
  if (table.mode == "off") {
    out += "the checkpoint's biases are in force\n";
  } else {
    absl::StrAppend(&out, "window: ", FormatCount(table.observed), " of ",
                    FormatCount(table.window), " assignments per expert",
                    table.window == 0 ? " (moved by calls alone)" : "", "   kept in ",
                    table.file.empty() ? "no file" : EscapeControls(table.file), "\n");
  }
  out += "              MaxVio   |bias - b0|   tokens changed\n";
  for (const LayerBias& layer : table.layers) {
    absl::StrAppendFormat(&out, "  layer %-3d  %9.3f   %11.4f   %12.1f %%\n", layer.layer,
                          layer.max_violation, layer.max_delta, 100 * layer.changed_ratio);
    for (size_t expert = 0; all && expert < layer.bias.size(); ++expert) {
      absl::StrAppendFormat(&out, "    expert %-4d %g, the checkpoint's %g\n", expert,
                            layer.bias[expert], layer.base[expert]);
    }
  }
  return out;
}

Json BiasesJson(const BiasTable& table) {
  std::vector<Json> layers;
  for (const LayerBias& layer : table.layers) {
    Json entry = Json::Object({});
    entry.Set("layer", Json::Integer(layer.layer));
    entry.Set("base", FloatsJson(layer.base));
    entry.Set("bias", FloatsJson(layer.bias));
    entry.Set("max_violation", Json::Number(layer.max_violation));
    entry.Set("max_delta", Json::Number(layer.max_delta));
    entry.Set("changed_ratio", Json::Number(layer.changed_ratio));
    layers.push_back(std::move(entry));
  }
  Json json = Json::Object({});
  json.Set("mode", Json::String(table.mode));
  json.Set("version", Json::Integer(static_cast<int64_t>(table.version)));
  json.Set("gamma", Json::Number(table.gamma));
  json.Set("limit", Json::Number(table.limit));
  json.Set("window", Json::Integer(table.window));
  json.Set("observed", Json::Integer(table.observed));
  json.Set("file", Json::String(table.file));
  json.Set("model_hash", Json::String(table.model_hash));
  json.Set("layers", Json::Array(std::move(layers)));
  return json;
}

}  // namespace moebius
