// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "moebius/base/huge_pages.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/packed_cache.h"
#include "moebius/tensor/weight_arena.h"

namespace moebius {

/// Time that the threads of a load spent, all together. Thread-safe.
class LoadPhases {
 public:
  void AddRead(absl::Duration time) { Add(read_ns_, time); }
  void AddPack(absl::Duration time) { Add(pack_ns_, time); }
  absl::Duration read() const { return absl::Nanoseconds(read_ns_.load()); }
  absl::Duration pack() const { return absl::Nanoseconds(pack_ns_.load()); }

 private:
  static void Add(std::atomic<int64_t>& sum, absl::Duration time) {
    sum.fetch_add(absl::ToInt64Nanoseconds(time), std::memory_order_relaxed);
  }
  std::atomic<int64_t> read_ns_ = 0;
  std::atomic<int64_t> pack_ns_ = 0;
};

/// How a service's packed weights came into memory.
struct WeightLoadFigures {
  int64_t bytes = 0;
  int num_threads = 0;
  absl::Duration total;       // until they are usable
  absl::Duration read, pack;  // of all threads together; zero after a hit
  absl::Duration cache_read;  // with its check; of a miss next to nothing
  absl::Duration cache_write;
  PackedCacheResult found;  // what the cache had
  PackedCacheResult kept;   // what became of keeping it for the next start
  HugePages huge_pages;
  std::vector<std::string> notes;  // sentences for a log: what the cache could not give or keep

  /// Two parts that were loaded one after the other; outcomes are those of the last one that had a
  /// cache.
  void Add(const WeightLoadFigures& other);
};

/// "1071644672 bytes of weights in 0.81 s with 2 threads: read 0.70 s, pack 0.80 s; huge pages: …".
/// `policy` is HostHugePagePolicy's. Pure.
std::string DescribeWeightLoad(const WeightLoadFigures& figures, const std::string& policy);

/// One range of an arena that is packed in one go.
struct WeightPart {
  int64_t begin = 0;
  int64_t size_bytes = 0;
};

/// Ranges of the given sizes one after the other, each 64-byte aligned, and where the last ends.
std::vector<WeightPart> LayOutParts(const std::vector<int64_t>& sizes, int64_t* total_bytes);

/// What LoadWeights loads and how.
struct WeightLoad {
  const Checkpoint& checkpoint;
  const PackedKey& key;
  const std::vector<WeightPart>& parts;  // of the arena
  PackedCache* cache = nullptr;          // null: none
  int num_threads = 1;
  std::function<void(int64_t loaded_bytes)> on_progress;  // on the caller's thread
};

/// Fills an arena: from the cache where that has what the key names, else by `pack` for each part,
/// on several threads, each writing its part of the zero arena alone; then keeps it in the cache.
/// The bytes are the same either way. The status is that of a part that could not be packed.
absl::StatusOr<WeightLoadFigures> LoadWeights(
    const WeightLoad& load, WeightArena& arena,
    absl::FunctionRef<absl::Status(size_t part, absl::Span<uint8_t> storage, LoadPhases& phases)>
        pack);

}  // namespace moebius
