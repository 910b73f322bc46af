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
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "attention_service/attention_pipeline.h"
#include "attention_service/attention_rank.h"
#include "attention_service/peer_exchange.h"
#include "moebius/base/executor.h"
#include "moebius/base/mutex.h"
#include "moebius/kernels/kernels.h"
#include "moebius/model/checkpoint.h"
#include "moebius/model/weight_load.h"
#include "moebius/service/joiner.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// An attention rank as the router's roster knows it: takes a slot, loads the attention weights of
/// all layers, opens the rank on the data plane and finds the other ranks. Rank i dials rank j < i;
/// who dials in is known by its advertised data address.
///
/// A slot with other ranks' addresses only moves connections; another rank, number of ranks or row
/// budget loads again, without the sessions. Thread-safe, save SetTransport.
class AttentionParticipant final : public Participant {
 public:
  /// Borrows the model, kernels and executor.
  struct Options {
    const Checkpoint* checkpoint = nullptr;
    const Kernels* kernels = nullptr;
    Executor* executor = nullptr;
    int64_t kv_budget_bytes = 0;
    /// Set: AttentionPipeline::MakeMock with this delay of each layer.
    std::optional<absl::Duration> mock_delay;
    /// A rank among others measures its kernel while it loads, some tenths of a second, for the
    /// router's choice of methods.
    bool measures_kernel = false;
    PackedCache* cache = nullptr;  // of packed weights; null: none
    /// Told how far a load has come, and at its end how the weights came, on the joiner's thread.
    std::function<void(int64_t loaded_bytes, int64_t total_bytes)> on_progress;
    std::function<void(const WeightLoadFigures& figures)> on_loaded;
  };
  explicit AttentionParticipant(const Options& options) : options_(options) {}
  ~AttentionParticipant() override;

  /// Before anything else; the transport outlives what is loaded (Unload).
  void SetTransport(Transport& transport) { transport_ = &transport; }
  /// Closes the rank and forgets its sessions.
  void Unload() MOEBIUS_EXCLUDES(mutex_);

  absl::StatusOr<SlotReady> Load(const SlotAssignment& slot, const Progress& progress) override
      MOEBIUS_EXCLUDES(mutex_);
  void OnRouterUp(const PeerInfo& router) override MOEBIUS_EXCLUDES(mutex_);
  void OnRouterDown(const PeerInfo& router) override MOEBIUS_EXCLUDES(mutex_);
  void OnPeerState(const PeerInfo& peer) override MOEBIUS_EXCLUDES(mutex_);

  /// Nothing while no slot is loaded.
  std::optional<RankFigures> figures() const MOEBIUS_EXCLUDES(mutex_);

 private:
  // What a slot makes; destroyed from the last to the first.
  struct Loaded {
    SlotAssignment slot;
    std::unique_ptr<PeerExchange> exchange;  // with more than one rank
    std::unique_ptr<AttentionPipeline> pipeline;
    std::unique_ptr<AttentionRank> rank;
  };

  absl::StatusOr<std::unique_ptr<AttentionPipeline>> LoadPipeline(const Sharding& sharding,
                                                                  const Progress& progress) const;
  absl::StatusOr<std::unique_ptr<Loaded>> Open(const SlotAssignment& slot,
                                               const Progress& progress);
  absl::Status DialRanks(const SlotAssignment& slot) MOEBIUS_EXCLUDES(mutex_);
  absl::StatusOr<double> MeasureKernel(const AttentionFacts& facts,
                                       const SlotAssignment& slot) const;
  SlotReady ReadyOf(const Loaded& loaded) const;
  std::optional<int32_t> RankOf(const PeerInfo& peer) const MOEBIUS_REQUIRES(mutex_);
  void TellPeers() MOEBIUS_REQUIRES(mutex_);

  // A rank that this one dials.
  struct Dialed {
    std::string address;
    PeerId peer;
  };

  const Options options_;
  Transport* transport_ = nullptr;

  mutable Mutex mutex_;
  std::unique_ptr<Loaded> loaded_ MOEBIUS_GUARDED_BY(mutex_);
  std::optional<PeerId> router_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<PeerId, PeerInfo> peers_ MOEBIUS_GUARDED_BY(mutex_);  // connected ones
  std::map<int32_t, Dialed> dialed_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace moebius
