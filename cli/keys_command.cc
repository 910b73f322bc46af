// SPDX-License-Identifier: Apache-2.0
#include "cli/keys_command.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command_flags.h"
#include "cli/error_output.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/parse_number.h"
#include "moebius/base/replace_file.h"
#include "moebius/base/status.h"
#include "moebius/model/json.h"
#include "moebius/rpc/api_key.h"
#include "moebius/service/process.h"
#include "router_service/client_list.h"

namespace moebius {
namespace {

constexpr char kKeysExamples[] =
    R"(Who may call a router's public port: the list that its --api-keys names.

Examples:
  moebius keys add team-a --file keys.json --max-in-flight 8 --tokens-per-minute 60000
  moebius keys add team-a --file keys.json
  moebius keys retire team-a --file keys.json
  moebius keys list --file keys.json
  moebius keys remove team-a --file keys.json

`add` prints the new key, which is kept nowhere: the file has its hash. A client may have several, so
that one can take another's place: add, hand out, retire. Routers take a changed file up in 5 s.)";

using ClientIterator = std::vector<ClientEntry>::iterator;

absl::StatusOr<std::vector<ClientEntry>> ReadOrNothing(const std::string& path) {
  auto clients = ReadClientList(path);
  if (absl::IsNotFound(clients.status())) return std::vector<ClientEntry>();
  return clients;
}

absl::Status Write(const std::string& path, const std::vector<ClientEntry>& clients) {
  const std::string text = absl::StrCat(FormatClientList(clients), "\n");
  // What cannot be read back must not take the place of what can.
  MOEBIUS_RETURN_IF_ERROR(ParseClientList(text, path).status());
  return ReplaceFile(path, text, 0600);
}

ClientIterator FindClient(std::vector<ClientEntry>& clients, const std::string& name) {
  return std::find_if(clients.begin(), clients.end(),
                      [&name](const ClientEntry& client) { return client.name == name; });
}

absl::Status NoSuchClient(const KeysFlags& flags) {
  return absl::NotFoundError(absl::StrCat(flags.file, " has no client ", flags.client));
}

absl::Status SetLimits(const KeysFlags& flags, ClientEntry* client) {
  if (flags.max_in_flight.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(client->max_in_flight,
                             ParseInteger("--max-in-flight", *flags.max_in_flight));
  }
  if (flags.tokens_per_minute.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(client->tokens_per_minute,
                             ParseInteger("--tokens-per-minute", *flags.tokens_per_minute));
  }
  return absl::OkStatus();
}

absl::Status AddKey(const KeysFlags& flags) {
  // Two at a time: the key of one would be lost, after it was shown.
  MOEBIUS_ASSIGN_OR_RETURN(const OwnedFd lock, LockForReplacing(flags.file));
  MOEBIUS_ASSIGN_OR_RETURN(std::vector<ClientEntry> clients, ReadOrNothing(flags.file));
  ClientIterator client = FindClient(clients, flags.client);
  if (client == clients.end()) {
    clients.push_back({.name = flags.client});
    client = std::prev(clients.end());
  }
  if (client->key_hashes.size() >= kMaxKeysOfClient) {
    return WithHint(absl::FailedPreconditionError(absl::StrCat(
                        flags.client, " has ", kMaxKeysOfClient, " keys, which is the limit")),
                    absl::StrCat("moebius keys retire ", flags.client, " drops the oldest"));
  }
  MOEBIUS_RETURN_IF_ERROR(SetLimits(flags, &*client));
  MOEBIUS_ASSIGN_OR_RETURN(const std::string key, DrawKey());
  client->key_hashes.push_back(HashKey(key));
  MOEBIUS_RETURN_IF_ERROR(Write(flags.file, clients));
  if (flags.json) {
    Json json = Json::Object({});
    json.Set("client", Json::String(flags.client));
    json.Set("key", Json::String(key));
    PrintLine(json.ToCanonicalText());
  } else {
    PrintLine(key);
    absl::FPrintF(stderr, "the key of %s; it is shown this once. Callers set MOEBIUS_API_KEY.\n",
                  flags.client);
  }
  return absl::OkStatus();
}

absl::Status RetireKey(const KeysFlags& flags) {
  MOEBIUS_ASSIGN_OR_RETURN(const OwnedFd lock, LockForReplacing(flags.file));
  MOEBIUS_ASSIGN_OR_RETURN(std::vector<ClientEntry> clients, ReadClientList(flags.file));
  const ClientIterator client = FindClient(clients, flags.client);
  if (client == clients.end()) return NoSuchClient(flags);
  if (client->key_hashes.size() < 2) {
    return WithHint(
        absl::FailedPreconditionError(absl::StrCat(
            flags.client, " has one key: without it nobody is ", flags.client, " any more")),
        "add the next key first, or take the client off with moebius keys remove");
  }
  client->key_hashes.erase(client->key_hashes.begin());
  return Write(flags.file, clients);
}

absl::Status RemoveClient(const KeysFlags& flags) {
  MOEBIUS_ASSIGN_OR_RETURN(const OwnedFd lock, LockForReplacing(flags.file));
  MOEBIUS_ASSIGN_OR_RETURN(std::vector<ClientEntry> clients, ReadClientList(flags.file));
  const ClientIterator client = FindClient(clients, flags.client);
  if (client == clients.end()) return NoSuchClient(flags);
  clients.erase(client);
  return Write(flags.file, clients);
}

std::string LimitWords(int64_t limit) { return limit == 0 ? "any" : FormatCount(limit); }

absl::Status ListClients(const KeysFlags& flags) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<ClientEntry> clients, ReadClientList(flags.file));
  if (flags.json) {
    PrintLine(FormatClientList(clients));
    return absl::OkStatus();
  }
  PrintLine(
      absl::StrFormat("%-24s %5s %14s %18s", "client", "keys", "max in flight", "tokens a minute"));
  for (const ClientEntry& client : clients) {
    PrintLine(absl::StrFormat("%-24s %5d %14s %18s", client.name, client.key_hashes.size(),
                              LimitWords(client.max_in_flight),
                              LimitWords(client.tokens_per_minute)));
  }
  return absl::OkStatus();
}

struct KeysCommand {
  const char* name;
  const char* description;
  bool takes_client;
  absl::Status (*run)(const KeysFlags&);
};
constexpr KeysCommand kCommands[] = {
    {"add", "Give a client one more key, and print it", true, AddKey},
    {"list", "Who is on the list, with what limits", false, ListClients},
    {"retire", "Drop a client's oldest key", true, RetireKey},
    {"remove", "Take a client off the list", true, RemoveClient},
};

}  // namespace

void AddKeys(CLI::App& app, KeysFlags& flags) {
  CLI::App& keys =
      AddCommand(app, "keys", "Keys of who may call a router's public port", kKeysExamples);
  for (const KeysCommand& each : kCommands) {
    CLI::App& command = *keys.add_subcommand(each.name, each.description);
    SetExamples(command, kKeysExamples);
    if (each.takes_client) command.add_option("client", flags.client, "Its name")->required();
    command.add_option("--file", flags.file, "The list; made by the first `add`, with mode 0600")
        ->type_name("FILE")
        ->required();
    if (each.run == AddKey) {
      AddTextFlags(command, {{"Limits", "--max-in-flight", "N", &flags.max_in_flight,
                              "Calls of the client at a time; 0, the default: any number"},
                             {"Limits", "--tokens-per-minute", "N", &flags.tokens_per_minute,
                              "Tokens of its prompts and answers; 0, the default: any number"}});
    }
    command.add_flag("--json", flags.json, "One JSON object on stdout")->group("Output");
  }
}

int RunKeys(const CLI::App& keys_command, const KeysFlags& flags) {
  for (const KeysCommand& each : kCommands) {
    if (!keys_command.got_subcommand(each.name)) continue;
    const absl::Status status = each.run(flags);
    if (status.ok()) return kExitOk;
    PrintError(status, flags.json ? OutputForm::kJson : OutputForm::kText);
    return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailed;
  }
  std::fputs(keys_command.help().c_str(), stdout);
  return kExitOk;
}

}  // namespace moebius
