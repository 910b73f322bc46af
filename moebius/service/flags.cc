// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/flags.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/executor.h"
#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/service/exit_status.h"
#include "moebius/transport/hello.h"
#include "moebius/wire/slot_codec.h"

#ifndef MOEBIUS_VERSION
#error "the build defines MOEBIUS_VERSION for this file"
#endif

namespace moebius {
namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr size_t kMaxRouters = 16;

bool Joins(const ServiceFlags& flags) { return flags.role != Role::kRouter; }

absl::Status CheckName(const std::string& name) {
  bool is_printable = true;
  for (const char c : name) is_printable = is_printable && c > 0x20 && c < 0x7f;
  if (is_printable && name.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--name has at most ", kMaxNameBytes, " printable letters without blanks, not '", name, "'"));
}

absl::Status ReadAddress(absl::string_view flag, const std::string& text, Address* address) {
  const auto parsed = ParseAddress(text);
  if (!parsed.ok()) return WithContext(parsed.status(), flag);
  *address = *parsed;
  return absl::OkStatus();
}

// Where the process listens; nothing for an empty text.
absl::Status ReadListen(absl::string_view flag, const std::string& text, Exposure exposure,
                        std::optional<Address>* listen) {
  if (text.empty()) return absl::OkStatus();
  Address address;
  MOEBIUS_RETURN_IF_ERROR(ReadAddress(flag, text, &address));
  const absl::Status status = ValidateListenAddress(address, exposure);
  if (!status.ok()) return WithContext(status, flag);
  *listen = address;
  return absl::OkStatus();
}

absl::Status ReadTls(const ServiceFlags& flags, ServiceConfig* config) {
  const bool any = !flags.tls_ca.empty() || !flags.tls_cert.empty() || !flags.tls_key.empty();
  const bool all = !flags.tls_ca.empty() && !flags.tls_cert.empty() && !flags.tls_key.empty();
  if (any && !all) {
    return absl::InvalidArgumentError("--tls-ca, --tls-cert and --tls-key come together");
  }
  if (!flags.tls_peers.empty() && !all) {
    return WithHint(absl::InvalidArgumentError("--tls-peer without TLS proves nothing"),
                    "add --tls-ca, --tls-cert and --tls-key");
  }
  if (all && flags.insecure) {
    return absl::InvalidArgumentError("--insecure and --tls-* contradict each other");
  }
  config->exposure = all              ? Exposure::kTls
                     : flags.insecure ? Exposure::kInsecureAllowed
                                      : Exposure::kLoopbackOnly;
  if (!all) return absl::OkStatus();
  TlsOptions tls;
  tls.ca_file = flags.tls_ca;
  tls.cert_file = flags.tls_cert;
  tls.key_file = flags.tls_key;
  tls.allowed_peers = flags.tls_peers;
  config->tls = tls;
  return absl::OkStatus();
}

// The routers to join: an expert service works for several at once, an attention rank for one.
absl::Status ReadRouters(const ServiceFlags& flags, ServiceConfig* config) {
  if (flags.join.empty()) {
    return WithHint(absl::InvalidArgumentError("--join is missing"),
                    "give it the router's data address, HOST:PORT");
  }
  if (flags.role == Role::kAttention && flags.join.size() > 1) {
    return WithHint(absl::InvalidArgumentError(
                        absl::StrCat("--join is given ", flags.join.size(),
                                     " times: an attention rank keeps the sessions of one router")),
                    "start ranks of its own for each router; expert services may be shared");
  }
  if (flags.join.size() > kMaxRouters) {
    return absl::InvalidArgumentError(
        absl::StrCat("--join is given ", flags.join.size(), " times; at most ", kMaxRouters));
  }
  for (const std::string& text : flags.join) {
    Address join;
    MOEBIUS_RETURN_IF_ERROR(ReadAddress("--join", text, &join));
    if (IsUnspecified(join) || join.port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--join ", text, " is a place to listen, none to connect to"));
    }
    if (std::count(config->join.begin(), config->join.end(), join) > 0) {
      return absl::InvalidArgumentError(absl::StrCat("--join ", text, " is given twice"));
    }
    config->join.push_back(join);
  }
  return absl::OkStatus();
}

absl::Status ReadAddresses(const ServiceFlags& flags, ServiceConfig* config) {
  MOEBIUS_RETURN_IF_ERROR(ReadListen("--listen", flags.listen, config->exposure, &config->listen));
  MOEBIUS_RETURN_IF_ERROR(
      ReadListen("--admin-listen", flags.admin_listen, config->exposure, &config->admin_listen));
  MOEBIUS_RETURN_IF_ERROR(
      ReadListen("--http-listen", flags.http_listen, config->exposure, &config->http_listen));
  if (flags.role != Role::kExpert && !config->listen.has_value()) {
    return absl::InvalidArgumentError("--listen is missing: others of the cluster dial it");
  }
  if (!flags.advertise.empty()) {
    MOEBIUS_RETURN_IF_ERROR(ReadAddress("--advertise", flags.advertise, &config->advertise));
  }
  if (config->listen.has_value() && config->listen->port != 0) {
    const auto advertised = AdvertisedAddress(*config->listen, config->advertise);
    if (!advertised.ok()) return WithContext(advertised.status(), "--advertise");
  }
  return Joins(flags) ? ReadRouters(flags, config) : absl::OkStatus();
}

absl::Status ReadMachine(const ServiceFlags& flags, ServiceConfig* config) {
  config->num_threads = flags.threads > 0 ? static_cast<int>(flags.threads) : DefaultNumThreads();
  config->kernels = &BestKernels();
  if (flags.tier.empty()) return absl::OkStatus();
  const std::optional<Tier> tier = ParseTier(flags.tier);
  if (!tier.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--tier '", flags.tier, "' is no tier"));
  }
  config->kernels = FindKernels(*tier);
  if (config->kernels != nullptr) return absl::OkStatus();
  for (const TierReport& report : TierReports()) {
    if (report.tier != *tier) continue;
    return WithHint(absl::FailedPreconditionError(
                        absl::StrCat("--tier ", flags.tier, " cannot run here: ", report.reason)),
                    "leave the choice to Moebius; all tiers give the same bits");
  }
  return absl::OkStatus();
}

void ReadModel(const ServiceFlags& flags, ServiceConfig* config) {
  CheckpointOptions& options = config->checkpoint;
  options.config_file = flags.config_file;
  options.convert_to_bf16 = flags.dtype == "bf16";
  if (flags.span > 0) options.numerics.span = static_cast<int32_t>(flags.span);
  if (!flags.attention_sum.empty()) options.numerics.attention_sum = flags.attention_sum;
  if (!flags.attention_layout.empty()) options.numerics.attention_layout = flags.attention_layout;
  if (flags.group_fill == "neg-inf") {
    options.numerics.group_fill = GroupFill::kNegativeInfinity;
  } else if (flags.group_fill == "zero") {
    options.numerics.group_fill = GroupFill::kZero;
  }
}

}  // namespace

ServiceFlags ServiceFlags::For(Role role) {
  ServiceFlags flags;
  flags.role = role;
  // A router is looked for, so its ports are fixed; participants find it, so theirs are free ones.
  flags.listen = role == Role::kExpert   ? ""
                 : role == Role::kRouter ? "127.0.0.1:7410"
                                         : "127.0.0.1:0";
  flags.admin_listen = role == Role::kRouter ? "127.0.0.1:7411" : "127.0.0.1:0";
  flags.http_listen = role == Role::kRouter ? "127.0.0.1:7412" : "127.0.0.1:0";
  return flags;
}

void AddServiceSettings(ServiceFlags* flags, Settings* settings) {
  settings->AddText({"Model", "model", "DIR", "Model folder: config.json and safetensors"},
                    &flags->model);
  settings->AddText({"Model", "model-config", "FILE", "Read instead of the folder's config.json"},
                    &flags->config_file);
  settings->AddChoice({"Model", "dtype", "TYPE", "bf16: round F16 or F32 weights"}, {"", "bf16"},
                      &flags->dtype);
  settings->AddInteger({"Model", "span", "N",
                        "Keys per attention span; changes answers; 0: the "
                        "model's"},
                       0, int64_t{1} << 30, &flags->span);
  settings->AddChoice({"Model", "attention-sum", "WAY",
                       "canonical or per-degree (bits depend on the ranks); changes answers"},
                      {"", "canonical", "per-degree"}, &flags->attention_sum);
  settings->AddChoice({"Model", "attention-layout", "LAYOUT",
                       "Of the per-degree sum: zigzag, contiguous or striped; changes answers"},
                      {"", "zigzag", "contiguous", "striped"}, &flags->attention_layout);
  settings->AddChoice({"Model", "group-fill", "FILL", "neg-inf or zero; changes answers"},
                      {"", "neg-inf", "zero"}, &flags->group_fill);
  if (Joins(*flags)) {
    settings->AddList({"Cluster", "join", "HOST:PORT",
                       flags->role == Role::kExpert
                           ? "A router's data address; again for each router that shares this"
                           : "The router's data address"},
                      &flags->join);
    settings->AddInteger({"Cluster", "slot", "N", "The index that it would like; -1: any"}, -1,
                         kMaxSlots - 1, &flags->slot);
  }
  settings->AddText({"Cluster", "name", "NAME", "In messages and metrics; role and process id"},
                    &flags->name);
  if (flags->role != Role::kExpert) {
    settings->AddText({"Addresses", "listen", "HOST:PORT", "Data plane; port 0: a free one"},
                      &flags->listen);
    settings->AddText({"Addresses", "advertise", "HOST:PORT", "How others reach --listen"},
                      &flags->advertise);
  }
  settings->AddText({"Addresses", "admin-listen", "HOST:PORT", "Administration; empty: none"},
                    &flags->admin_listen);
  settings->AddText({"Addresses", "http-listen", "HOST:PORT",
                     "/metrics, /livez, /readyz, /startupz; empty: none"},
                    &flags->http_listen);
  settings->AddChoice({"Addresses", "transport", "KIND", "auto, grpc, or shm inside one host"},
                      {"auto", "grpc", "shm"}, &flags->transport);
  settings->AddText({"Security", "tls-ca", "FILE", "Who may sign peers' certificates (PEM)"},
                    &flags->tls_ca);
  settings->AddText({"Security", "tls-cert", "FILE", "This process's certificate (PEM)"},
                    &flags->tls_cert);
  settings->AddText({"Security", "tls-key", "FILE", "Its key (PEM)"}, &flags->tls_key);
  settings->AddList(
      {"Security", "tls-peer", "NAME", "Names of peers to let in, * for any text; may be repeated"},
      &flags->tls_peers);
  settings->AddSwitch({"Security", "insecure", "", "Listen beyond this host without TLS"},
                      &flags->insecure);
  settings->AddInteger({"Machine", "threads", "N", "0: what CPU affinity and cgroup allow"}, 0,
                       kMaxThreads, &flags->threads);
  settings->AddText({"Machine", "tier", "NAME", "Kernels; the best that runs here"}, &flags->tier);
  if (Joins(*flags)) {
    settings->AddText(
        {"Machine", "packed-cache", "DIR", "Keeps packed weights for the next start; empty: none"},
        &flags->packed_cache);
    settings->AddBytes({"Machine", "packed-cache-limit", "BYTES",
                        "Of all its files, the oldest go first; 0: what the disk has"},
                       &flags->packed_cache_limit);
  }
  settings->AddInteger({"Process", "drain-seconds", "N", "After SIGTERM requests may take so long"},
                       0, 86400, &flags->drain_seconds);
  settings->AddChoice({"Process", "log-format", "FORM", "text or json"}, {"text", "json"},
                      &flags->log_format);
  settings->AddInteger({"Process", "die-with-parent", "PID",
                        "End at once when this parent process ends; 0: live on"},
                       0, int64_t{1} << 22, &flags->die_with_parent);
}

absl::StatusOr<ServiceConfig> ValidateServiceFlags(const ServiceFlags& flags) {
  ServiceConfig config;
  if (flags.model.empty()) {
    return WithHint(absl::InvalidArgumentError("--model is missing"),
                    "give it a folder with config.json and safetensors");
  }
  MOEBIUS_RETURN_IF_ERROR(CheckName(flags.name));
  config.name =
      flags.name.empty() ? absl::StrCat(RoleName(flags.role), "-pid", getpid()) : flags.name;
  MOEBIUS_RETURN_IF_ERROR(ReadTls(flags, &config));
  MOEBIUS_RETURN_IF_ERROR(ReadAddresses(flags, &config));
  MOEBIUS_RETURN_IF_ERROR(ReadMachine(flags, &config));
  ReadModel(flags, &config);
  return config;
}

absl::StatusOr<std::unique_ptr<const Checkpoint>> OpenServiceModel(const ServiceFlags& flags,
                                                                   const ServiceConfig& config) {
  auto checkpoint = Checkpoint::Open(flags.model, config.checkpoint);
  if (!checkpoint.ok()) return WithExitCode(checkpoint.status(), kExitModel);
  return checkpoint;
}

Greeting BuildGreeting(const ServiceFlags& flags, const ServiceConfig& config,
                       const Checkpoint& checkpoint) {
  Greeting greeting;
  greeting.role = flags.role;
  greeting.config_hash = FormatHash64(checkpoint.config_hash());
  greeting.model_hash = FormatHash64(checkpoint.model_hash());
  greeting.numeric_class = checkpoint.numerics().numeric_class;
  greeting.tier = std::string(TierName(config.kernels->tier));
  greeting.version = MOEBIUS_VERSION;
  greeting.wanted_index = static_cast<int32_t>(flags.slot);
  greeting.pid = static_cast<uint64_t>(getpid());
  return greeting;
}

}  // namespace moebius
