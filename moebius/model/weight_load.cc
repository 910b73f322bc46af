// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/weight_load.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/clock.h"
#include "moebius/base/parallel_tasks.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

absl::Duration Now() { return Clock::Monotonic().Now(); }

std::string Seconds(absl::Duration time) {
  return absl::StrFormat("%.2f s", absl::ToDoubleSeconds(time));
}

}  // namespace

void WeightLoadFigures::Add(const WeightLoadFigures& other) {
  bytes += other.bytes;
  num_threads = std::max(num_threads, other.num_threads);
  total += other.total;
  read += other.read;
  pack += other.pack;
  cache_read += other.cache_read;
  cache_write += other.cache_write;
  if (other.found.outcome != PackedCacheOutcome::kOff) found = other.found;
  if (other.kept.outcome != PackedCacheOutcome::kOff) kept = other.kept;
  huge_pages.Add(other.huge_pages);
  notes.insert(notes.end(), other.notes.begin(), other.notes.end());
}

std::string DescribeWeightLoad(const WeightLoadFigures& figures, const std::string& policy) {
  std::string text =
      absl::StrCat(figures.bytes, " bytes of weights in ", Seconds(figures.total), " with ",
                   figures.num_threads, figures.num_threads == 1 ? " thread: " : " threads: ");
  if (figures.found.outcome == PackedCacheOutcome::kHit) {
    absl::StrAppend(&text, "from the packed cache");
  } else {
    absl::StrAppend(&text, "read ", Seconds(figures.read), ", pack ", Seconds(figures.pack));
    if (figures.kept.outcome == PackedCacheOutcome::kWritten) {
      absl::StrAppend(&text, ", keep for the next start ", Seconds(figures.cache_write));
    }
  }
  return absl::StrCat(text, "; ", DescribeHugePages(figures.huge_pages, policy));
}

std::vector<WeightPart> LayOutParts(const std::vector<int64_t>& sizes, int64_t* total_bytes) {
  std::vector<WeightPart> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back({begin, size});
    begin += ArenaCursor::Taken(size);
  }
  *total_bytes = begin;
  return parts;
}

absl::StatusOr<WeightLoadFigures> LoadWeights(
    const WeightLoad& load, WeightArena& arena,
    absl::FunctionRef<absl::Status(size_t part, absl::Span<uint8_t> storage, LoadPhases& phases)>
        pack) {
  const absl::Duration begin = Now();
  WeightLoadFigures figures;
  figures.bytes = static_cast<int64_t>(arena.bytes().size());
  figures.num_threads = std::max(1, load.num_threads);
  const auto progress = [&load](int64_t bytes) {
    if (load.on_progress) load.on_progress(bytes);
  };
  const bool has_cache = load.cache != nullptr && load.cache->is_on();
  PackedSource source;
  if (has_cache) {
    MOEBIUS_ASSIGN_OR_RETURN(source, PackedSource::Of(load.checkpoint));
    figures.found =
        load.cache->Read(load.checkpoint, load.key, arena.bytes(), load.num_threads, progress);
    figures.cache_read = Now() - begin;
    if (figures.found.outcome == PackedCacheOutcome::kInvalid) arena.Clear();
  }
  if (figures.found.outcome != PackedCacheOutcome::kHit) {
    LoadPhases phases;
    int64_t loaded = 0;
    MOEBIUS_RETURN_IF_ERROR(RunParallelTasks(
        load.parts.size(), load.num_threads,
        [&](size_t index) {
          const WeightPart& part = load.parts[index];
          return pack(index, arena.Range(part.begin, part.size_bytes), phases);
        },
        [&](size_t index) { progress(loaded += load.parts[index].size_bytes); }));
    figures.read = phases.read();
    figures.pack = phases.pack();
    if (has_cache) {
      const absl::Duration write_begin = Now();
      figures.kept =
          load.cache->Write(load.checkpoint, load.key, source, arena.bytes(), load.num_threads);
      figures.cache_write = Now() - write_begin;
    }
  }
  for (const PackedCacheResult* result : {&figures.found, &figures.kept}) {
    if (!result->words.empty()) figures.notes.push_back(result->words);
  }
  figures.huge_pages = arena.huge_pages();
  figures.total = Now() - begin;
  return figures;
}

}  // namespace moebius
