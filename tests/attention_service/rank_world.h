// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention_service/attention_rank.h"
#include "moebius/base/executor.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/faulty/faulty.h"
#include "moebius/transport/link.h"
#include "moebius/transport/reactor.h"
#include "moebius/transport/transport.h"
#include "router_service/peer_directory.h"
#include "router_service/remote_attention.h"
#include "tests/attention_service/attention_fixture.h"

namespace moebius::testing {

/// What carries the frames of a world; `loopback` where nothing is said.
using ProviderFactory = std::function<std::unique_ptr<LinkProvider>(Reactor&)>;
std::unique_ptr<LinkProvider> MakeLoopback(Reactor& reactor);

/// Frames of `frame_bytes`, windows of two of them and a bit: most messages are larger, so every
/// exchange lives on credits.
inline constexpr uint64_t kRankFrameBytes = 8 << 10;
inline uint64_t WindowBytesOf(uint64_t frame_bytes) { return 2 * frame_bytes + 1024; }
TransportOptions RankTransportOptions(const std::string& name, const AttentionCase& model,
                                      uint64_t frame_bytes = kRankFrameBytes);

/// Knows ranks by the names of their processes: "attention-0", …
class NamedRanks final : public PeerDirectory, public PeerWatcher {
 public:
  void OnPeerState(const PeerInfo& peer) override;
  std::optional<PeerId> ExpertPeer(ServiceId) const override { return std::nullopt; }
  std::optional<PeerId> AttentionPeer(int32_t rank) const override;
  bool IsExpertUsable(ServiceId) const override { return false; }
  bool IsAttentionUsable(int32_t rank) const override { return AttentionPeer(rank).has_value(); }
  uint64_t version() const override;
  ListenerId AddListener(std::function<void()> on_change) override;
  void RemoveListener(ListenerId id) override;

 private:
  mutable Mutex mutex_;
  std::map<std::string, PeerId> peers_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<ListenerId, std::function<void()>> listeners_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t version_ MOEBIUS_GUARDED_BY(mutex_) = 0;
};

/// One attention rank with all that its process has.
class RankProcess final : public PeerWatcher {
 public:
  static constexpr double kKernelFlops = 3e9;  // what it says when it is probed
  struct Place {
    int32_t rank = 0;
    int32_t num_ranks = 1;
    Address router;
    Address listen{"127.0.0.1", 0};
    std::vector<Address> lower_ranks;  // that this one dials
    uint64_t frame_bytes = kRankFrameBytes;
  };
  RankProcess(const AttentionCase& model, const Place& place, LinkProvider& provider,
              Reactor& reactor);
  ~RankProcess() override;

  void OnPeerState(const PeerInfo& peer) override;
  const Address& address() const { return address_; }
  AttentionRank& rank() { return *rank_; }
  Transport& transport() { return *transport_; }

 private:
  Executor executor_{1};
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<PeerExchange> exchange_;
  std::unique_ptr<AttentionPipeline> pipeline_;
  std::unique_ptr<AttentionRank> rank_;
  Address address_;
  // The transport reports peers before the rank is there.
  Mutex mutex_;
  bool is_ready_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::vector<PeerInfo> early_ MOEBIUS_GUARDED_BY(mutex_);
  void Tell(const PeerInfo& peer);
};

/// A router's side and N ranks, as processes with real time over links of any kind. What a rank
/// sends can be disturbed.
class RankWorld {
 public:
  struct Links {
    ProviderFactory make = MakeLoopback;
    uint64_t frame_bytes = kRankFrameBytes;
  };
  /// `method`: how prompts are shared; nothing: as the cost model chooses.
  RankWorld(const AttentionCase& model, int32_t num_ranks,
            std::optional<AttentionMethod> method = std::nullopt)
      : RankWorld(model, num_ranks, method, Links{}) {}
  RankWorld(const AttentionCase& model, int32_t num_ranks, std::optional<AttentionMethod> method,
            const Links& links);
  ~RankWorld();

  RemoteAttention& port() { return *port_; }
  Transport& router() { return *router_; }
  NamedRanks& directory() { return directory_; }
  RankProcess& rank(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int32_t num_ranks() const { return static_cast<int32_t>(ranks_.size()); }
  /// Faults of everything that the rank sends.
  FaultPlan& faults(int32_t rank) { return *plans_[static_cast<size_t>(rank)]; }

  void Kill(int32_t rank) { ranks_[static_cast<size_t>(rank)].reset(); }
  void Start(int32_t rank);
  void KillRouter();
  /// All ranks see one another and the router, within ten seconds.
  bool AllConnected();
  static bool Until(const std::function<bool()>& condition);

 private:
  const AttentionCase& model_;
  const uint64_t frame_bytes_;
  Reactor reactor_{Clock::Monotonic()};
  const std::unique_ptr<LinkProvider> provider_;
  std::vector<std::unique_ptr<FaultPlan>> plans_;
  std::vector<std::unique_ptr<FaultyProvider>> faulty_;
  ReactorThread thread_{reactor_};
  NamedRanks directory_;
  std::unique_ptr<Transport> router_;
  Address router_address_;
  std::map<int32_t, Address> addresses_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  std::unique_ptr<RemoteAttention> port_;
};

}  // namespace moebius::testing
