// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/run.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/process.h"
#include "moebius/base/status.h"
#include "moebius/service/exit_status.h"
#include "moebius/telemetry/log.h"
#include "moebius/transport/grpc/grpc_log.h"

#ifndef MOEBIUS_VERSION
#error "the build defines MOEBIUS_VERSION for this file"
#endif

namespace moebius {
namespace {

// A log that nobody reads holds up the last words no longer than this.
constexpr absl::Duration kMaxLogWait = absl::Seconds(1);

class Notices final : public ProcessNotices {
 public:
  Notices(const std::string& name, LogFormat format, StopSignal& stop)
      : logger_(std::make_shared<Logger>(OptionsOf(name, format))), stop_(stop) {
    InstallGrpcLog([logger = logger_](const std::string& line) {
      logger->LogOf({"", "grpc"}, LogLevel::kError, line, {});
    });
  }
  ~Notices() override { InstallGrpcLog(nullptr); }

  void Log(absl::string_view sentence) override { logger_->Info(sentence); }
  void LogOf(const LogSource& source, absl::string_view sentence) override {
    logger_->LogOf(source, LogLevel::kInfo, sentence, {});
  }
  Logger* logger() override { return logger_.get(); }
  void Announce(absl::string_view line) override { PrintLine(line); }
  void Fail(const absl::Status& status) override { stop_.Fail(status); }

 private:
  static LogOptions OptionsOf(const std::string& name, LogFormat format) {
    LogOptions options;
    options.name = name;
    options.format = format;
    return options;
  }

  const std::shared_ptr<Logger> logger_;  // gRPC's threads may hold it a little longer
  StopSignal& stop_;
};

int ReportFailure(const absl::Status& status, ExitCode code) {
  std::fputs(absl::StrCat(FormatError(status), "\n").c_str(), stderr);
  return code;
}

std::string ProgramName(const ServiceProgram& program) {
  return absl::StrCat("moebius-", RoleName(program.flags().role));
}

// Runs the server until there is a reason to end.
int RunUntilStopped(ServiceProgram& program, const ServiceConfig& config, StopSignal& stop) {
  LogFormat format = LogFormat::kText;
  MOEBIUS_CHECK(ParseLogFormat(program.flags().log_format, &format));  // a choice of the settings
  Notices notices(config.name, format, stop);
  auto server = program.Start(config, notices);
  if (!server.ok()) {
    notices.logger()->Flush(kMaxLogWait);
    return ReportFailure(server.status(), ExitCodeOf(server.status()));
  }
  notices.Log(absl::StrCat("who may connect: ", DescribeExposure(config.exposure)));
  PrintLine(FormatListening(program.flags().role, config.name, (*server)->endpoints()));
  StopReason reason = StopReason::kStop;
  stop.Wait(absl::InfiniteDuration(), &reason);
  stop.LetSignalsKill();
  if (reason == StopReason::kFailed) {
    const absl::Status failure = stop.failure();
    notices.logger()->Flush(kMaxLogWait);
    return ReportFailure(failure, ExitCodeOf(failure));
  }
  if (reason == StopReason::kDrain) {
    notices.Log("draining: new work is refused, what was begun is finished");
    (*server)->Drain(absl::Seconds(program.flags().drain_seconds));
  }
  server->reset();
  notices.Log("stopped");
  return kExitOk;
}

}  // namespace

std::string FormatListening(Role role, const std::string& name, const Endpoints& endpoints) {
  std::string line =
      absl::StrCat("listening role=", RoleName(role), " name=", name, " pid=", getpid());
  const auto add = [&line](absl::string_view key, const std::string& address) {
    if (!address.empty()) absl::StrAppend(&line, " ", key, "=", address);
  };
  add("data", endpoints.data);
  add("admin", endpoints.admin);
  add("http", endpoints.http);
  add("grpc", endpoints.grpc);
  return line;
}

int RunService(ServiceProgram& program, int argc, char** argv) {
  PrepareProcess();
  StopSignal stop;
  Settings settings;
  AddServiceSettings(program.mutable_flags(), &settings);
  program.AddSettings(&settings);
  const std::string help = absl::StrCat(program.examples(), "\n\n", settings.Help());
  Settings::Requests requests;
  const absl::Status applied = settings.Apply(std::vector<std::string>(argv + 1, argv + argc),
                                              ProcessEnvironment, &requests);
  if (!applied.ok()) {
    return ReportFailure(applied, requests.is_file_wrong ? kExitHost : kExitUsage);
  }
  if (requests.help) {
    std::fputs(help.c_str(), stdout);
    return kExitOk;
  }
  if (requests.version) {
    PrintLine(absl::StrCat(ProgramName(program), " ", MOEBIUS_VERSION));
    return kExitOk;
  }
  if (requests.print_config) {
    PrintLine(settings.ToJson());
    return kExitOk;
  }
  const auto config = ValidateServiceFlags(program.flags());
  if (!config.ok()) return ReportFailure(config.status(), kExitHost);
  if (const absl::Status status = program.Validate(*config); !status.ok()) {
    return ReportFailure(status, kExitHost);
  }
  if (requests.check_config) {
    PrintLine("the configuration is right");
    return kExitOk;
  }
  if (program.flags().die_with_parent != 0) {
    const absl::Status status = DieWithParent(program.flags().die_with_parent);
    if (!status.ok()) return ReportFailure(status, kExitHost);
  }
  RaiseFileLimit();
  return RunUntilStopped(program, *config, stop);
}

}  // namespace moebius
