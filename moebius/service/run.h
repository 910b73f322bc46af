// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/service/flags.h"
#include "moebius/service/process.h"
#include "moebius/service/settings.h"
#include "moebius/telemetry/log.h"

namespace moebius {

/// Where a process can be reached; empty where it does not listen.
struct Endpoints {
  std::string data;   // other processes of the cluster
  std::string admin;  // gRPC, administration
  std::string http;   // /metrics, /livez, /readyz, /startupz
  std::string grpc;   // gRPC, the public API
};

/// "listening role=expert name=expert-0 pid=4711 admin=127.0.0.1:40001 …": the one line that a
/// script waits for.
std::string FormatListening(Role role, const std::string& name, const Endpoints& endpoints);

/// A service that runs. Its destructor ends everything at once.
class ServiceServer {
 public:
  virtual ~ServiceServer() = default;
  virtual Endpoints endpoints() const = 0;
  /// Refuses new work and returns when what was begun is done, or `limit` has passed.
  virtual void Drain(absl::Duration limit) = 0;
};

/// What a server may tell the process around it. Thread-safe; outlives the server.
class ProcessNotices {
 public:
  virtual ~ProcessNotices() = default;
  /// A sentence for whoever reads the log (stderr). Never waits for the reader.
  virtual void Log(absl::string_view sentence) = 0;
  /// The same for what others can provoke: `source` says whose budget the line counts against.
  virtual void LogOf(const LogSource& source, absl::string_view sentence) { Log(sentence); }
  /// The log itself, for levels and fields; null where there is none (tests).
  virtual Logger* logger() { return nullptr; }
  /// A line for a program (stdout): "ready …", "waiting …", after the listening line.
  virtual void Announce(absl::string_view line) = 0;
  /// The process cannot go on and ends with ExitCodeOf(status).
  virtual void Fail(const absl::Status& status) = 0;
};

/// One program: its flags, its own settings, and how it starts.
class ServiceProgram {
 public:
  explicit ServiceProgram(Role role) : flags_(ServiceFlags::For(role)) {}
  virtual ~ServiceProgram() = default;

  /// What --help shows first: a sentence and examples.
  virtual const char* examples() const = 0;
  /// Settings beside those of all services. Targets live in the program.
  virtual void AddSettings(Settings* settings) {}
  /// What its own settings mean together. INVALID_ARGUMENT names the setting.
  virtual absl::Status Validate(const ServiceConfig& config) { return absl::OkStatus(); }
  /// Listens and returns; loading goes on behind it.
  virtual absl::StatusOr<std::unique_ptr<ServiceServer>> Start(const ServiceConfig& config,
                                                               ProcessNotices& notices) = 0;

  const ServiceFlags& flags() const { return flags_; }
  ServiceFlags* mutable_flags() { return &flags_; }

 private:
  ServiceFlags flags_;
};

/// The whole life of a service's process; main returns what it returns. Flags, then start, then
/// the listening line; SIGTERM and SIGHUP drain, SIGINT stops, a second signal ends it at once.
int RunService(ServiceProgram& program, int argc, char** argv);

}  // namespace moebius
