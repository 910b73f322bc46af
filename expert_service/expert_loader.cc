// SPDX-License-Identifier: Apache-2.0
#include "expert_service/expert_loader.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "moebius/base/mutex.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

struct Packed {
  size_t index = 0;
  std::unique_ptr<const PackedExpert> expert;
};

// What the threads of one PackExperts share.
class PackingJob {
 public:
  PackingJob(const Checkpoint& checkpoint, absl::Span<const HeldExpert> experts, PairOrder order)
      : checkpoint_(checkpoint), experts_(experts), order_(order) {}

  // Packs one expert after the other until none is left, or one failed.
  void Work() MOEBIUS_EXCLUDES(mutex_) {
    while (PackNext()) {
    }
  }

  // The caller's share: packs, too, and tells what came meanwhile.
  absl::Status WorkAndTell(OnPacked on_packed) MOEBIUS_EXCLUDES(mutex_) {
    while (PackNext()) Tell(on_packed);
    while (WaitForPacked()) Tell(on_packed);
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  bool PackNext() MOEBIUS_EXCLUDES(mutex_) {
    size_t index = 0;
    {
      MutexLock lock(mutex_);
      if (next_ == experts_.size() || !status_.ok()) return false;
      index = next_++;
      ++under_way_;
    }
    absl::StatusOr<std::unique_ptr<const PackedExpert>> packed = Pack(experts_[index]);
    MutexLock lock(mutex_);
    --under_way_;
    if (packed.ok()) {
      done_.push_back({index, *std::move(packed)});
    } else {
      status_.Update(packed.status());
    }
    changed_.SignalAll();
    return true;
  }

  absl::StatusOr<std::unique_ptr<const PackedExpert>> Pack(const HeldExpert& held) const {
    MOEBIUS_ASSIGN_OR_RETURN(const ExpertWeights weights,
                             checkpoint_.ExpertSlice(held.layer, held.id));
    return std::make_unique<const PackedExpert>(
        PackedExpert::Pack(weights.gate.rows(), weights.up.rows(), weights.down.rows(), order_));
  }

  // False when nothing is left to come.
  bool WaitForPacked() MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (done_.empty() && under_way_ > 0) changed_.Wait(mutex_);
    return !done_.empty();
  }

  void Tell(OnPacked on_packed) MOEBIUS_EXCLUDES(mutex_) {
    std::vector<Packed> done;
    {
      MutexLock lock(mutex_);
      done.swap(done_);
    }
    for (Packed& packed : done) on_packed(packed.index, std::move(packed.expert));
  }

  const Checkpoint& checkpoint_;
  const absl::Span<const HeldExpert> experts_;
  const PairOrder order_;

  Mutex mutex_;
  CondVar changed_;
  size_t next_ MOEBIUS_GUARDED_BY(mutex_) = 0;  // the next to be packed
  int under_way_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::vector<Packed> done_ MOEBIUS_GUARDED_BY(mutex_);  // not told yet
  absl::Status status_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace

absl::Status PackExperts(const Checkpoint& checkpoint, absl::Span<const HeldExpert> experts,
                         PairOrder order, int num_threads, OnPacked on_packed) {
  PackingJob job(checkpoint, experts, order);
  std::vector<std::thread> threads;
  const size_t helpers = std::min(static_cast<size_t>(std::max(1, num_threads)), experts.size());
  try {
    for (size_t i = 1; i < helpers; ++i) threads.emplace_back([&job] { job.Work(); });
  } catch (const std::system_error&) {
    // The host has no more threads: those that came do the work.
  }
  absl::Status status = job.WorkAndTell(on_packed);
  for (std::thread& thread : threads) thread.join();
  return status;
}

}  // namespace moebius
