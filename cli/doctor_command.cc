// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_command.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/cluster_checks.h"
#include "cli/error_output.h"
#include "cli/host_facts.h"
#include "cli/listen_check.h"
#include "cli/terminal.h"

#include "moebius/base/error.h"
#include "moebius/base/executor.h"
#include "moebius/base/exit_code.h"
#include "moebius/base/float_environment.h"
#include "moebius/base/host_memory.h"
#include "moebius/base/status.h"
#include "moebius/kernels/kernels.h"
#include "moebius/kernels/tier.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

DoctorCheck CheckKernels() {
  std::vector<std::string> usable;
  std::vector<std::string> others;
  for (const TierReport& report : TierReports()) {
    if (report.usable) {
      usable.emplace_back(TierName(report.tier));
    } else {
      others.push_back(absl::StrCat(TierName(report.tier), " (", report.reason, ")"));
    }
  }
  DoctorCheck check{"kernels", CheckState::kOk, "", ""};
  check.detail = absl::StrCat(CpuName(), ": ", absl::StrJoin(usable, ", "), "; not ",
                              others.empty() ? "missing any" : absl::StrJoin(others, ", "));
  if (BestKernels().tier == Tier::kPortable) {
    check.state = CheckState::kWarning;
    check.hint = "answers have the same bits here, but come slowly: use a CPU with AVX2 or better";
  }
  return check;
}

DoctorCheck CheckThreads() {
  const int threads = DefaultNumThreads();
  const int64_t online = sysconf(_SC_NPROCESSORS_ONLN);
  return {"threads", CheckState::kOk,
          absl::StrCat(threads, " by CPU affinity and cgroup quota, of ", online, " online"), ""};
}

DoctorCheck CheckFloatEnvironment() {
  bool right = false;
  Executor executor(1);
  executor.Run([&right] { right = HasFloatEnvironment(); });
  if (right) return {"floating point", CheckState::kOk, "denormals are flushed on executors", ""};
  return {"floating point", CheckState::kFault, "the executor cannot flush denormals",
          "this CPU or emulator cannot give Moebius's bits"};
}

DoctorCheck CheckMemory() {
  const HostMemory memory = ReadHostMemory();
  DoctorCheck check{
      "memory", CheckState::kOk,
      absl::StrCat(FormatBytes(memory.limit_bytes), " by ", memory.source, ", ",
                   FormatBytes(memory.available_bytes), " available; KV pool ",
                   FormatBytes(DefaultKvBudgetBytes(memory)), " unless --kv-budget says otherwise"),
      ""};
  if (memory.available_bytes < (int64_t{256} << 20)) {
    check.state = CheckState::kWarning;
    check.hint = "less than 256 MB are free: loading may fail or swap";
  }
  return check;
}

DoctorCheck CheckOpenFiles() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  DoctorCheck check{"open files", CheckState::kOk,
                    absl::StrCat("soft limit ", limit.rlim_cur, ", hard limit ", limit.rlim_max),
                    ""};
  if (limit.rlim_max < 4096) {
    check.state = CheckState::kWarning;
    check.hint = "a service with many clients needs more: raise it with ulimit -Hn";
  }
  return check;
}

DoctorCheck CheckSharedMemory() {
  struct statvfs status = {};
  if (statvfs("/dev/shm", &status) != 0) {
    return {"/dev/shm", CheckState::kWarning, "not there",
            "services of one host will use sockets instead of shared memory"};
  }
  const int64_t bytes =
      static_cast<int64_t>(status.f_blocks) * static_cast<int64_t>(status.f_frsize);
  return {"/dev/shm", CheckState::kOk, FormatBytes(bytes), ""};
}

DoctorCheck CheckHugePages() {
  const std::string mode = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  DoctorCheck check{"huge pages", CheckState::kOk, mode.empty() ? "unknown" : mode, ""};
  if (mode.find("[never]") != std::string::npos) {
    check.state = CheckState::kWarning;
    check.hint = "weights are read faster with transparent huge pages set to madvise or always";
  }
  return check;
}

DoctorCheck CheckNuma() {
  int nodes = 0;
  while (access(absl::StrCat("/sys/devices/system/node/node", nodes).c_str(), F_OK) == 0) ++nodes;
  DoctorCheck check{"NUMA", CheckState::kOk,
                    nodes <= 1 ? "one node" : absl::StrCat(nodes, " nodes"), ""};
  if (nodes > 1) {
    check.state = CheckState::kWarning;
    check.hint = "run one process per node, bound with numactl: weights are not spread by node";
  }
  return check;
}

DoctorCheck CheckGpu() {
  const bool there = access("/dev/nvidiactl", F_OK) == 0;
  return {"GPU", CheckState::kOk,
          there ? "an NVIDIA driver is there; this build computes on the CPU alone"
                : "none; this build computes on the CPU alone",
          ""};
}

DoctorCheck CheckModel(const std::string& folder) {
  const auto checkpoint = Checkpoint::Open(folder);
  if (!checkpoint.ok()) {
    return {"model", CheckState::kFault, std::string(checkpoint.status().message()),
            HintOf(checkpoint.status())};
  }
  return {"model", CheckState::kOk,
          absl::StrCat(folder, ": ", (*checkpoint)->config().architecture, ", ",
                       (*checkpoint)->config().num_layers, " layers, ",
                       (*checkpoint)->config().gate.num_experts, " experts"),
          ""};
}

absl::string_view StateName(CheckState state) {
  switch (state) {
    case CheckState::kOk:
      return "ok";
    case CheckState::kWarning:
      return "warning";
    case CheckState::kFault:
      break;
  }
  return "fault";
}

void PrintJson(const std::vector<DoctorCheck>& checks, bool ok) {
  std::vector<Json> elements;
  for (const DoctorCheck& check : checks) {
    Json element = Json::Object({});
    element.Set("name", Json::String(check.name));
    element.Set("state", Json::String(StateName(check.state)));
    element.Set("detail", Json::String(check.detail));
    element.Set("hint", Json::String(check.hint));
    elements.push_back(std::move(element));
  }
  Json json = Json::Object({});
  json.Set("ok", Json::Boolean(ok));
  json.Set("checks", Json::Array(std::move(elements)));
  absl::PrintF("%s\n", json.ToCanonicalText());
}

}  // namespace

absl::StatusOr<std::vector<DoctorCheck>> ExamineHost(const DoctorFlags& flags) {
  std::vector<DoctorCheck> checks = {CheckKernels(),   CheckThreads(),   CheckFloatEnvironment(),
                                     CheckMemory(),    CheckOpenFiles(), CheckSharedMemory(),
                                     CheckHugePages(), CheckNuma(),      CheckGpu()};
  if (flags.listen.has_value()) {
    MOEBIUS_ASSIGN_OR_RETURN(const std::vector<Address> addresses,
                             ParseListenAddresses(*flags.listen));
    checks.push_back(CheckListenAddresses(addresses));
  }
  if (!flags.model.empty()) checks.push_back(CheckModel(flags.model));
  return checks;
}

namespace {

absl::StatusOr<std::vector<DoctorCheck>> Examine(const DoctorFlags& flags, bool is_cluster) {
  if (!is_cluster) return ExamineHost(flags);
  if (flags.model.empty() && !flags.listen.has_value()) return ExamineCluster(flags);
  return WithHint(absl::InvalidArgumentError(
                      absl::StrCat(flags.listen.has_value() ? "--listen" : "--model",
                                   " looks at this host, --router and --peers at a cluster")),
                  "ask one after the other");
}

}  // namespace

int RunDoctor(const DoctorFlags& flags) {
  const bool is_cluster = flags.router.router.has_value() || flags.peers.has_value();
  absl::StatusOr<std::vector<DoctorCheck>> examined = Examine(flags, is_cluster);
  if (!examined.ok()) {
    PrintError(examined.status(), flags.json ? OutputForm::kJson : OutputForm::kText);
    return kExitUsage;
  }
  const std::vector<DoctorCheck> checks = *std::move(examined);
  bool ok = true;
  for (const DoctorCheck& check : checks) ok = ok && check.state != CheckState::kFault;
  if (flags.json) {
    PrintJson(checks, ok);
  } else {
    for (const DoctorCheck& check : checks) {
      absl::PrintF("%-8s %-15s %s\n", StateName(check.state), check.name,
                   EscapeControls(check.detail));
      if (!check.hint.empty()) absl::PrintF("%-24s → %s\n", "", EscapeControls(check.hint));
    }
  }
  if (ok) return kExitOk;
  return is_cluster ? kExitFailed : kExitHost;
}

}  // namespace moebius
