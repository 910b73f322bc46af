// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/load_bench.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/status.h"
#include "moebius/model/packed_folder.h"
#include "node/embedded.h"

namespace moebius {
namespace {

// A warm start against a cold one.
constexpr double kTargetRatio = 5;
constexpr int64_t kKvBudgetBytes = int64_t{64} << 20;

// A folder that ends with the benchmark, with the packed files in it.
class CacheFolder {
 public:
  explicit CacheFolder(const std::string& named) : path_(named) {}
  ~CacheFolder() {
    if (!is_own_) return;
    if (DIR* const folder = opendir(path_.c_str())) {
      while (const dirent* entry = readdir(folder)) {
        if (absl::EndsWith(entry->d_name, kPackedFileSuffix)) {
          unlinkat(dirfd(folder), entry->d_name, 0);
        }
      }
      closedir(folder);
    }
    rmdir(path_.c_str());
  }
  CacheFolder(const CacheFolder&) = delete;
  CacheFolder& operator=(const CacheFolder&) = delete;

  absl::Status Make() {
    if (!path_.empty()) return absl::OkStatus();
    const char* const temporary = getenv("TMPDIR");
    path_ = absl::StrCat(temporary == nullptr ? "/tmp" : temporary, "/moebius-load-XXXXXX");
    if (mkdtemp(path_.data()) == nullptr) {
      return absl::UnavailableError(absl::StrCat(path_, ": cannot be made"));
    }
    is_own_ = true;
    return absl::OkStatus();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_own_ = false;
};

struct Start {
  double seconds = 0;
  WeightLoadFigures load;
};

absl::StatusOr<Start> OpenOnce(const LoadBenchOptions& options, const std::string& cache) {
  EmbeddedOptions node;
  node.model_path = options.model;
  node.num_threads = options.num_threads;
  node.kv_budget_bytes = kKvBudgetBytes;
  node.packed_cache.folder = cache;
  const absl::Duration begin = Clock::Monotonic().Now();
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<EmbeddedNode> opened, EmbeddedNode::Open(node));
  Start start;
  start.seconds = absl::ToDoubleSeconds(Clock::Monotonic().Now() - begin);
  start.load = opened->info().load;
  return start;
}

absl::StatusOr<double> WarmSeconds(const LoadBenchOptions& options, const std::string& cache) {
  MOEBIUS_ASSIGN_OR_RETURN(const Start start, OpenOnce(options, cache));
  if (start.load.found.outcome == PackedCacheOutcome::kHit) return start.seconds;
  std::string why =
      absl::StrCat("the packed cache gave a ", PackedCacheOutcomeName(start.load.found.outcome));
  for (const std::string& note : start.load.notes) absl::StrAppend(&why, "; ", note);
  return absl::FailedPreconditionError(why);
}

}  // namespace

absl::Status ValidateOptions(const LoadBenchOptions& options) {
  if (options.model.empty()) return absl::InvalidArgumentError("--model is missing");
  if (options.repetitions < 1 || options.repetitions > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--repetitions is ", options.repetitions, ", not in [1, 1000]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<BenchReport> RunLoadBench(
    const LoadBenchOptions& options,
    const std::function<void(int done, int total, const std::string& next)>& progress) {
  MOEBIUS_RETURN_IF_ERROR(ValidateOptions(options));
  CacheFolder folder(options.folder);
  MOEBIUS_RETURN_IF_ERROR(folder.Make());
  const int total = options.repetitions + 2;
  const auto tell = [&](int done, const std::string& next) {
    if (progress != nullptr) progress(done, total, next);
  };
  tell(0, "warm-up");  // the checkpoint's pages
  MOEBIUS_RETURN_IF_ERROR(OpenOnce(options, "").status());
  tell(1, "first start");
  MOEBIUS_ASSIGN_OR_RETURN(const Start first, OpenOnce(options, folder.path()));
  std::vector<double> warm, cold;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    tell(repetition + 2, "cold and warm");
    const bool is_cold_first = repetition % 2 == 0;
    for (const bool is_cold : {is_cold_first, !is_cold_first}) {
      if (is_cold) {
        MOEBIUS_ASSIGN_OR_RETURN(const Start start, OpenOnce(options, ""));
        cold.push_back(start.seconds);
      } else {
        MOEBIUS_ASSIGN_OR_RETURN(const double seconds, WarmSeconds(options, folder.path()));
        warm.push_back(seconds);
      }
    }
  }
  BenchReport report = MakeBenchReport(0, options.num_threads);
  report.results.push_back(Summarize("load_cold", "s", BenchSense::kTime, cold));
  BenchResult result = Summarize("load_warm", "s", BenchSense::kTime, warm);
  CompareWith("cold load", warm, cold, kTargetRatio, &result);
  report.results.push_back(std::move(result));
  report.results.push_back(
      Summarize("load_first_with_cache", "s", BenchSense::kTime, {first.seconds}));
  return report;
}

}  // namespace moebius
