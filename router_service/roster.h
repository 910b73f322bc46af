// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "moebius/placement/placement.h"
#include "moebius/telemetry/log_limit.h"
#include "moebius/transport/transport.h"
#include "moebius/wire/greeting.h"
#include "router_service/peer_directory.h"
#include "router_service/slot_table.h"

namespace moebius {

struct RosterOptions {
  Greeting own;
  std::vector<NearConfig> near;  // to say in what a participant's configuration differs
  int32_t num_attention = 1;
  uint64_t term = 1;
  int64_t row_budget = 512;
  int64_t hidden_size = 0;
  absl::Duration canary_timeout = absl::Seconds(5);
  absl::Duration canary_retry = absl::Seconds(1);
  /// What happens to members, a sentence each, for the log; may be null. From the reactor. Anybody
  /// who reaches the port can provoke them: whoever writes them bounds them by their source.
  std::function<void(const LogSource&, const std::string&)> on_notice;
};

/// One member as status pages show it.
struct Member {
  Role role = Role::kExpert;
  int32_t index = 0;
  Slot slot;
};

/// Who is in the cluster: the router's side of membership. It listens to the peers of the router's
/// transport, gives those that join a slot and their part of the model, hears how they load, and
/// proves with one row that an expert service answers before any work goes there.
///
/// Invariants:
/// 1. A member is usable only after it said ready to the last slot that it was sent and, for an
///    expert, after a canary row came back finite.
/// 2. Nothing of a former life counts: a report or a canary of a peer that has left is dropped.
/// 3. Attention ranks are told all their addresses again whenever one of them changes.
///
/// Thread-safe. Outlives its transport: give it to Transport::Make as the watcher, then Start it.
class Roster final : public PeerWatcher, public PeerDirectory {
 public:
  /// `placement` outlives the roster; its services are the expert slots.
  Roster(const RosterOptions& options, const Placement& placement);
  ~Roster() override;

  /// Begins to assign slots. `reactor` is the transport's.
  absl::Status Start(Transport& transport, Reactor& reactor);

  absl::Status AdmitPeer(const PeerInfo& peer) override;
  void OnLinkRefused(const LinkFacts& facts, const absl::Status& reason) override;
  void OnPeerState(const PeerInfo& peer) override;

  std::optional<PeerId> ExpertPeer(ServiceId service) const override;
  std::optional<PeerId> AttentionPeer(int32_t rank) const override;
  bool IsExpertUsable(ServiceId service) const override;
  bool IsAttentionUsable(int32_t rank) const override;
  void NoteGone(PeerId peer) override;
  uint64_t version() const override;
  ListenerId AddListener(std::function<void()> on_change) override;
  void RemoveListener(ListenerId id) override;

  /// Links of processes that wanted to join and were refused, and links that were refused before
  /// they said who they are, since the start. A process has a link for each lane.
  uint64_t num_refused() const;

  /// What keeps the cluster from serving every request, in words; empty: nothing.
  std::vector<std::string> Missing() const;
  /// What keeps some request from being served, in words: an expert without a usable replica, an
  /// attention rank that is not there. A dead service whose experts have other replicas keeps none.
  std::vector<std::string> Unserved() const;
  /// Replicas of the expert that has the fewest: those that are usable now, and those that the
  /// placement has.
  struct Replicas {
    int64_t usable = 0;
    int64_t placed = 0;
  };
  Replicas FewestReplicas() const;
  /// All slots, experts first.
  std::vector<Member> members() const;
  /// Waits until nothing is missing, or `timeout` has passed: false then.
  bool WaitUntilComplete(absl::Duration timeout) const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;  // shared with deliveries that have begun
};

}  // namespace moebius
