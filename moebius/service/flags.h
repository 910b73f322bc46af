// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/service/settings.h"
#include "moebius/transport/address.h"
#include "moebius/transport/grpc/tls.h"
#include "moebius/wire/greeting.h"

namespace moebius {

/// The settings that all services share, as given. Fields hold the defaults.
struct ServiceFlags {
  Role role = Role::kRouter;  // not a setting: decides which of them exist

  std::string name;   // empty: the role and the process id
  std::string model;  // a Hugging Face folder
  std::string config_file;
  std::string dtype;               // "bf16": F16 and F32 weights may be rounded
  std::string group_fill;          // "neg-inf", "zero"; empty: the model's
  int64_t span = 0;                // 0: the model's
  std::string attention_sum;       // "canonical", "per-degree"; empty: the model's
  std::string attention_layout;    // "zigzag", "contiguous", "striped"; empty: the model's
  std::string tier;                // empty: the best of this host
  int64_t threads = 0;             // 0: what affinity and cgroup allow
  std::string listen;              // the data plane; experts only dial
  std::string advertise;           // how others reach `listen`; empty: as it is
  std::string admin_listen;        // empty: none
  std::string http_listen;         // /livez, /readyz, /startupz, /metrics; empty: none
  std::vector<std::string> join;   // the routers' data addresses; participants only
  int64_t slot = -1;               // the index that it would like; participants only
  std::string transport = "auto";  // grpc, shm
  std::string tls_ca, tls_cert, tls_key;
  std::vector<std::string> tls_peers;  // TlsOptions::allowed_peers
  bool insecure = false;
  int64_t drain_seconds = 120;
  std::string log_format = "text";
  std::string packed_cache;        // a folder; empty: none; participants only
  int64_t packed_cache_limit = 0;  // bytes of all files in it; 0: what the disk has
  int64_t die_with_parent = 0;     // the parent's process id; 0: lives on

  /// With the defaults of a role: where it listens.
  static ServiceFlags For(Role role);
};

/// Adds the settings that a service of flags->role has.
void AddServiceSettings(ServiceFlags* flags, Settings* settings);

/// What the flags mean, after validation.
struct ServiceConfig {
  std::string name;
  std::optional<Address> listen;  // of the data plane
  Address advertise;              // with an empty host: as `listen`
  std::optional<Address> admin_listen;
  std::optional<Address> http_listen;
  std::vector<Address> join;  // each once; one of an attention rank, some of an expert service
  std::optional<TlsOptions> tls;
  Exposure exposure = Exposure::kLoopbackOnly;
  const Kernels* kernels = nullptr;
  int num_threads = 1;
  CheckpointOptions checkpoint;
};

/// Checks each field and what they mean together. INVALID_ARGUMENT names the setting and carries a
/// hint; FAILED_PRECONDITION where this host cannot do it. Opens no file and no port.
absl::StatusOr<ServiceConfig> ValidateServiceFlags(const ServiceFlags& flags);

/// The model's folder by the flags. Failures carry kExitModel.
absl::StatusOr<std::unique_ptr<const Checkpoint>> OpenServiceModel(const ServiceFlags& flags,
                                                                   const ServiceConfig& config);

/// What a process of this model says in its hello. Addresses are filled in when they are known.
Greeting BuildGreeting(const ServiceFlags& flags, const ServiceConfig& config,
                       const Checkpoint& checkpoint);

}  // namespace moebius
