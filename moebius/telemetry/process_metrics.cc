// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace moebius {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Fields of /proc/self/stat behind the program's name, which may hold anything; proc(5) numbers
// them from 3.
constexpr size_t kFirstField = 3;
enum StatField : size_t {
  kUserTicks = 14,
  kSystemTicks = 15,
  kNumThreads = 20,
  kStartTicks = 22,
  kVirtualBytes = 23,
  kResidentPages = 24,
};

class Stat {
 public:
  explicit Stat(const std::string& text) {
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) return;
    fields_ = absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipEmpty());
  }
  bool complete() const { return fields_.size() > kResidentPages - kFirstField; }
  double Value(StatField field) const {
    double value = 0;
    return absl::SimpleAtod(fields_[field - kFirstField], &value) ? value : 0;
  }

 private:
  std::vector<std::string> fields_;
};

// Unix time of the machine's start; 0 when unknown.
double BootTime(const std::string& proc) {
  const std::string text = ReadAll(proc + "/stat");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::string_view rest = line;
    double seconds = 0;
    if (absl::ConsumePrefix(&rest, "btime ") && absl::SimpleAtod(rest, &seconds)) return seconds;
  }
  return 0;
}

int CountOpenFds(const std::string& proc) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir((proc + "/self/fd").c_str()), closedir);
  if (folder == nullptr) return -1;
  int count = -1;  // the folder itself is open while it is read
  while (const dirent* entry = readdir(folder.get())) count += entry->d_name[0] != '.';
  return count;
}

}  // namespace

ProcessMetrics::ProcessMetrics(std::string proc)
    : proc_(std::move(proc)), boot_time_(BootTime(proc_)) {}

void ProcessMetrics::Write(MetricWriter& writer) const {
  const Stat stat(ReadAll(proc_ + "/self/stat"));
  if (stat.complete()) {
    const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    writer.WriteCounter(Metric::kProcessCpuSeconds,
                        (stat.Value(kUserTicks) + stat.Value(kSystemTicks)) / ticks);
    writer.WriteGauge(Metric::kProcessThreads, stat.Value(kNumThreads));
    writer.WriteGauge(Metric::kProcessVirtualBytes, stat.Value(kVirtualBytes));
    writer.WriteGauge(Metric::kProcessResidentBytes,
                      stat.Value(kResidentPages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
    if (boot_time_ > 0) {
      writer.WriteGauge(Metric::kProcessStartTime, boot_time_ + stat.Value(kStartTicks) / ticks);
    }
  }
  if (const int open_fds = CountOpenFds(proc_); open_fds >= 0) {
    writer.WriteGauge(Metric::kProcessOpenFds, open_fds);
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    writer.WriteGauge(Metric::kProcessMaxFds, static_cast<double>(limit.rlim_cur));
  }
}

void WriteProcessMetrics(MetricWriter& writer) {
  static const ProcessMetrics metrics("/proc");
  metrics.Write(writer);
}

void WriteProcessFacts(const ProcessFacts& facts, MetricWriter& writer) {
  writer.WriteGauge(Metric::kBuildInfo, 1, {facts.service, facts.version});
  writer.WriteGauge(Metric::kConfigInfo, 1, {facts.config_hash, facts.numeric_class});
  writer.WriteGauge(Metric::kKernelInfo, 1, {facts.dtype, facts.kernel});
}

}  // namespace moebius
