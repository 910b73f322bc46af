// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/model/checkpoint.h"
#include "moebius/model/packed_file.h"

namespace moebius {

/// Where packed weights are kept between starts; an empty folder name: nowhere.
struct PackedCacheOptions {
  std::string folder;
  int64_t limit_bytes = 0;  // of all packed files in the folder; 0: what the disk has
};

/// What a packed range of memory is made of, beside the checkpoint. Equal parts, equal bytes.
struct PackedKey {
  std::string role;      // "experts", "attention": begins the file's name
  std::string layout;    // PackedLayoutName
  std::string contents;  // which weights, in their order in memory; no line break
};

/// How an attempt to use the cache ended.
enum class PackedCacheOutcome {
  kOff,      // there is no cache
  kHit,      // the bytes are those that were kept
  kMiss,     // nothing is kept under this key
  kStale,    // what is kept was made of files that have changed since
  kInvalid,  // what is kept is damaged, or not this user's own
  kWritten,  // kept for the next start
  kRefused,  // not kept: no room, no right, or a checkpoint that was written a moment ago
};
inline constexpr int kNumPackedCacheOutcomes = 7;

/// "off", "hit", "miss", "stale", "invalid", "written", "refused".
absl::string_view PackedCacheOutcomeName(PackedCacheOutcome outcome);

struct PackedCacheResult {
  PackedCacheOutcome outcome = PackedCacheOutcome::kOff;
  std::string words;       // a sentence for a log; empty where there is nothing to say
  int64_t file_bytes = 0;  // of a hit or of what was written
};

/// What the file system says of a checkpoint's files: what tells a checkpoint from one that was
/// written in its place, without reading either.
struct PackedSource {
  std::string text;         // a line for each file: name, size, inode, times
  bool is_settled = false;  // a change from now on shows in the text

  /// As of now. DATA_LOSS where the file system does not say.
  static absl::StatusOr<PackedSource> Of(const Checkpoint& checkpoint);
};

/// A folder of packed weights on a disk (docs/adr/0037-a-cache-of-packed-weights.md). It can only
/// make a start faster: whatever is wrong with it, the checkpoint is read as if it were not there.
///
/// Invariants:
/// 1. Bytes of a hit passed every hash after they were in memory, and were made of files that have
///    the sizes, inodes and times of the checkpoint's now.
/// 2. A file appears under its name when it is whole and on the disk; readers of one that is
///    replaced or removed keep what they opened.
/// 3. Nothing outside the folder is written, no link in it is followed.
///
/// Thread-safe, also between processes with one folder.
class PackedCache {
 public:
  explicit PackedCache(PackedCacheOptions options) : options_(std::move(options)) {}

  bool is_on() const { return !options_.folder.empty(); }

  /// Fills `out`, as large as what was kept, on `num_threads` threads. Any outcome but a hit leaves
  /// anything in it.
  PackedCacheResult Read(const Checkpoint& checkpoint, const PackedKey& key,
                         absl::Span<uint8_t> out, int num_threads,
                         const PackedProgress& on_progress = nullptr);
  /// Keeps `data`, packed from `checkpoint`; `source` is of the moment before the first file was
  /// read. Makes room by removing the files that were of use longest ago.
  PackedCacheResult Write(const Checkpoint& checkpoint, const PackedKey& key,
                          const PackedSource& source, absl::Span<const uint8_t> data,
                          int num_threads);

  /// How often each outcome but kOff was, since the start.
  int64_t Count(PackedCacheOutcome outcome) const {
    return counts_[static_cast<size_t>(outcome)].load(std::memory_order_relaxed);
  }

 private:
  PackedCacheResult Counted(PackedCacheResult result);
  PackedCacheResult TryRead(const Checkpoint& checkpoint, const PackedKey& key,
                            absl::Span<uint8_t> out, int num_threads,
                            const PackedProgress& on_progress) const;
  absl::Status TryWrite(const Checkpoint& checkpoint, const PackedKey& key,
                        const PackedSource& source, absl::Span<const uint8_t> data,
                        int num_threads) const;

  const PackedCacheOptions options_;
  std::array<std::atomic<int64_t>, kNumPackedCacheOutcomes> counts_ = {};
};

/// The name that the key has in a cache's folder. Pure.
std::string PackedFileName(const Checkpoint& checkpoint, const PackedKey& key);

}  // namespace moebius
