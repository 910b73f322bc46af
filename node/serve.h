// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/service/process.h"
#include "moebius/wire/greeting.h"
#include "node/child_process.h"
#include "node/restart_policy.h"

namespace moebius {

struct ServeOptions {
  std::string program_dir;                     // where moebius-router and the others are
  std::string log_dir;                         // exists; a file NAME.log for each process
  std::vector<std::string> model_flags;        // passed to all: --model DIR, --span …
  std::vector<std::string> attention_flags;    // passed to the attention ranks: --kv-budget
  std::vector<std::string> participant_flags;  // passed to all but the router: --packed-cache
  std::vector<std::string> router_flags;       // passed to the router: --row-budget …
  std::string listen = "127.0.0.1:0";          // the router's data plane, which others join
  std::string advertise;                       // how other hosts reach it; empty: as it is
  int32_t num_experts = 1;
  int32_t num_attention = 1;
  int64_t num_replicas = 0;  // 0: the router's default
  int num_threads = 1;       // of the host: each role gets all of them, see ThreadsOf
  std::string certs_dir;     // of CertificateFolder, for mutual TLS; empty: none
  bool restart = false;      // start a process again that has died
  RestartOptions restart_options;
  absl::Duration stop_limit = absl::Seconds(8);  // then SIGKILL
};

/// Threads for each of `num_processes` of one role: roles take turns in a step, the processes of a
/// role do not, so they share; but at least two where the host has them, so that the process with
/// the most work of a layer uses a CPU that another has left. Pure.
int ThreadsOf(int num_threads, int32_t num_processes);

/// Where a process of this host reaches one that listens at `address`, which may be all of the
/// host's addresses. Pure.
std::string OnThisHost(const std::string& address);

/// One process of a served cluster. Addresses are empty until it listens.
struct ServedProcess {
  std::string name;  // "router", "expert-2", "attention-0"
  Role role = Role::kRouter;
  int64_t pid = 0;
  std::string data, admin, http, grpc;
  std::string log_file;

  /// What others are told: the public address, else the one of administration, else data or http.
  std::string endpoint() const;
};

/// "listening role=… name=… …" as FormatListening writes it, into `process`; false for any other
/// line. Pure.
bool ParseListening(const std::string& line, ServedProcess* process);

/// What becomes of a served cluster, told on the thread that runs it.
struct ServeEvents {
  std::function<void(const std::string& why)> on_waiting;  // the router's words
  /// All processes are usable. Once, and after each restart: `restarted` names who is new.
  std::function<void(const std::vector<ServedProcess>& processes, int64_t loaded_bytes,
                     const std::vector<std::string>& restarted)>
      on_ready;
  /// `next` says in words whether and when it is started again; empty without restart.
  std::function<void(const ServedProcess& process, const ChildEnd& end, const std::string& message,
                     const std::string& next)>
      on_ended;
};

/// Starts the processes of a cluster on this host and looks after them: the router first, which
/// says where it listens, then all others at the same time.
///
/// Invariants:
/// 1. No child outlives this process, however it ends: the kernel kills them.
/// 2. A child that ends is noticed at once, and told with its last log lines.
/// 3. Stop reaches all children at the same time; none is left after stop_limit and a moment.
///
/// Belongs to one thread, which must live as long as the object.
class Serve {
 public:
  Serve(const ServeOptions& options, const ServeEvents& events);
  ~Serve();

  /// Runs until `stop` has a reason, or the cluster cannot go on: a child ended before all were
  /// ready, or the router ended, and there is no restart. Then stops all. The failure says which
  /// child, and why. A child that does not stay up is started later and later, and then left.
  absl::Status Run(StopSignal& stop);

  /// Of those that were stopped at the end: how many exited 0, and of how many.
  int num_clean_ends() const { return num_clean_ends_; }
  int num_stopped() const { return num_stopped_; }

 private:
  struct Child;

  absl::Status StartChild(Child& child);
  // A router that is started again is looked for where it was.
  std::string ListenOf(const ServedProcess& facts) const;
  std::vector<std::string> CommandOf(const Child& child) const;
  absl::Status StartParticipants();
  absl::Status Watch(absl::Duration timeout);
  absl::Status ReadFrom(Child& child);
  absl::Status TakeLine(Child& child, const std::string& line);
  absl::Status TakeEnd(Child& child, const ChildEnd& end);
  std::string PlanRestart(Child& child);
  void StopAll(StopReason reason);
  void WaitForEnds(absl::Duration limit);

  const ServeOptions options_;
  const ServeEvents events_;
  std::vector<std::unique_ptr<Child>> children_;  // the router first
  std::vector<std::string> restarted_;            // since the last time that all were ready
  bool is_ready_ = false;                         // has been
  int num_clean_ends_ = 0;
  int num_stopped_ = 0;
};

}  // namespace moebius
