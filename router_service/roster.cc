// SPDX-License-Identifier: Apache-2.0
#include "router_service/roster.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/proved_role.h"
#include "moebius/wire/row_codec.h"
#include "moebius/wire/slot_codec.h"
#include "router_service/canary.h"
#include "router_service/listener_list.h"

namespace moebius {
namespace {

constexpr uint32_t kMaxArrivingReports = 64;

// Where others reach what a process listens at on all its addresses: at the one that it came from.
std::string ReachableAt(const std::string& listened, const std::string& came_from) {
  absl::StatusOr<Address> address = ParseAddress(listened);
  const absl::StatusOr<Address> source = ParseAddress(came_from);
  if (!address.ok() || !source.ok() || !IsUnspecified(*address)) return listened;
  address->host = source->host;
  return FormatAddress(*address);
}

}  // namespace

class Roster::Impl : public std::enable_shared_from_this<Roster::Impl> {
 public:
  Impl(const RosterOptions& options, const Placement& placement)
      : options_(options),
        placement_(placement),
        experts_(Role::kExpert, placement.num_services()),
        attention_(Role::kAttention, options.num_attention),
        canary_attempts_(static_cast<size_t>(placement.num_services()), 0) {}

  absl::Status Start(Transport& transport, Reactor& reactor) MOEBIUS_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      transport_ = &transport;
      reactor_ = &reactor;
    }
    ReservationSpec reports;
    reports.scope = ReservationScope::kKind;
    reports.key.kind = kSlotReadyKind;
    reports.max_message_bytes = MaxSlotReadyBytes() + kMessageAlignment;
    reports.max_messages = kMaxArrivingReports;
    reports.on_delivery = [weak = weak_from_this()](Delivery delivery) {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self != nullptr && delivery.message.ok()) {
        self->OnReport(delivery.source, ParseSlotReady(*delivery.message));
      }
    };
    return transport.Reserve(std::move(reports)).status();
  }

  absl::Status AdmitPeer(const PeerInfo& peer) MOEBIUS_EXCLUDES(mutex_) {
    absl::Status status = JudgePeer(peer);
    if (!status.ok()) NoteRefusal(peer.name, peer.address, status);
    return status;
  }

  uint64_t num_refused() const { return num_refused_.load(std::memory_order_relaxed); }

  // Logged and counted here too, as the other process may be anybody's.
  void NoteRefusal(absl::string_view name, absl::string_view address, const absl::Status& status) {
    num_refused_.fetch_add(1, std::memory_order_relaxed);
    Notice(address, "refusal",
           absl::StrCat("refused ", name, " at ", address, ": ", status.message()));
  }

  void Notice(absl::string_view address, const std::string& kind, const std::string& text) const {
    if (text.empty() || !options_.on_notice) return;
    options_.on_notice({std::string(PeerOfAddress(address)), kind}, text);
  }
  // Of one that was admitted: many members of one host have a budget each.
  void MemberNotice(absl::string_view address, absl::string_view name,
                    const std::string& text) const {
    Notice(address, absl::StrCat("member ", name), text);
  }

  absl::Status JudgePeer(const PeerInfo& peer) const {
    MOEBIUS_ASSIGN_OR_RETURN(const Greeting greeting, ParseGreeting(peer.greeting));
    if (greeting.role == Role::kRouter) {
      return absl::InvalidArgumentError("a router joins no other router");
    }
    MOEBIUS_RETURN_IF_ERROR(CheckProvedRole(peer.facts.identity, greeting.role));
    if (greeting.role == Role::kAttention && options_.num_attention > 1 &&
        greeting.data_address.empty()) {
      return absl::InvalidArgumentError("an attention rank says no address for the other ranks");
    }
    return CheckGreeting(options_.own, greeting, options_.near);
  }

  void OnPeerState(const PeerInfo& peer) MOEBIUS_EXCLUDES(mutex_) {
    std::string notice;
    {
      MutexLock lock(mutex_);
      switch (peer.state) {
        case PeerState::kConnecting:
          break;
        case PeerState::kConnected:
          notice = roles_.contains(peer.id) ? Recover(peer) : Join(peer);
          break;
        case PeerState::kSuspect:
          notice = Suspect(peer);
          break;
        case PeerState::kDead:
          notice = Leave(peer);
          break;
      }
      Changed();
    }
    MemberNotice(peer.address, peer.name, notice);
  }

  std::optional<PeerId> PeerOf(Role role, int32_t index) const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const SlotTable& table = role == Role::kExpert ? experts_ : attention_;
    if (index < 0 || index >= table.count() || table.slot(index).state == SlotState::kEmpty) {
      return std::nullopt;
    }
    return table.slot(index).peer;
  }

  bool IsExpertUsable(int32_t index) const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return index >= 0 && index < experts_.count() && experts_.slot(index).is_usable();
  }
  bool IsAttentionUsable(int32_t index) const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return index >= 0 && index < attention_.count() && attention_.slot(index).goes_on();
  }

  void NoteGone(PeerId peer) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const auto role = roles_.find(peer);
    if (role == roles_.end()) return;
    TableOf(role->second).SetSuspect(peer, true);
    Changed();
  }

  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  ListenerList& listeners() { return listeners_; }

  std::vector<std::string> Missing() const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return MissingLocked();
  }

  std::vector<std::string> Unserved() const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::vector<std::string> unserved = attention_.Missing();
    const std::vector<std::string> absent = experts_.Missing();
    if (absent.empty() || FewestReplicasLocked().usable > 0) return unserved;
    unserved.insert(unserved.end(), absent.begin(), absent.end());
    return unserved;
  }

  Replicas FewestReplicas() const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return FewestReplicasLocked();
  }

  std::vector<Member> members() const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::vector<Member> members;
    for (const SlotTable* table : {&experts_, &attention_}) {
      for (int32_t index = 0; index < table->count(); ++index) {
        members.push_back({table->role(), index, table->slot(index)});
      }
    }
    return members;
  }

  bool WaitUntilComplete(absl::Duration timeout) const MOEBIUS_EXCLUDES(mutex_) {
    const absl::Duration end = Clock::Monotonic().Now() + timeout;
    MutexLock lock(mutex_);
    while (!MissingLocked().empty()) {
      const absl::Duration left = end - Clock::Monotonic().Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitWithTimeout(mutex_, left);
    }
    return true;
  }

 private:
  SlotTable& TableOf(Role role) MOEBIUS_REQUIRES(mutex_) {
    return role == Role::kExpert ? experts_ : attention_;
  }

  // Over every id of the placement; a service that is silent still counts as usable.
  Replicas FewestReplicasLocked() const MOEBIUS_REQUIRES(mutex_) {
    const int64_t num_services = experts_.count();
    Replicas fewest{num_services, num_services};
    for (int32_t layer = 0; layer < placement_.num_layers(); ++layer) {
      for (int32_t id = 0; id < placement_.shape().NumIds(LayerId(layer)); ++id) {
        const auto services = placement_.Services(LayerId(layer), ExpertId(id));
        if (services.empty()) continue;  // an id that the layer does not have
        int64_t usable = 0;
        for (const ServiceId service : services) {
          usable += experts_.slot(service.value()).state == SlotState::kUsable ? 1 : 0;
        }
        fewest.usable = std::min(fewest.usable, usable);
        fewest.placed = std::min(fewest.placed, static_cast<int64_t>(services.size()));
      }
    }
    return fewest;
  }

  std::vector<std::string> MissingLocked() const MOEBIUS_REQUIRES(mutex_) {
    std::vector<std::string> missing = experts_.Missing();
    for (std::string& sentence : attention_.Missing()) missing.push_back(std::move(sentence));
    return missing;
  }

  // --- Members come and go. Each returns a sentence for the log.

  std::string Join(const PeerInfo& peer) MOEBIUS_REQUIRES(mutex_) {
    auto greeting = ParseGreeting(peer.greeting);
    if (!greeting.ok()) return "";
    greeting->http_address = ReachableAt(greeting->http_address, peer.address);
    roles_[peer.id] = greeting->role;
    addresses_[peer.id] = peer.address;
    SlotTable& table = TableOf(greeting->role);
    const std::optional<int32_t> index = table.Join(peer.id, peer.name, *greeting);
    if (!index.has_value()) {
      SlotAssignment spare;
      spare.role = greeting->role;
      spare.count = std::max(table.count(), 1);
      spare.row_budget = options_.row_budget;
      SendAssignment(peer.id, spare);
      return absl::StrCat(peer.name, " joined; all ", table.count(), " ", RoleName(greeting->role),
                          " slots are taken, it waits as a spare");
    }
    Assign(table, *index);
    return absl::StrCat(peer.name, " joined from ", peer.address, " as ", RoleName(greeting->role),
                        " slot ", *index, " of ", table.count());
  }

  std::string Suspect(const PeerInfo& peer) MOEBIUS_REQUIRES(mutex_) {
    if (!roles_.contains(peer.id)) return "";
    TableOf(roles_[peer.id]).SetSuspect(peer.id, true);
    return absl::StrCat(peer.name, " is suspect: ", peer.reason.message());
  }

  std::string Recover(const PeerInfo& peer) MOEBIUS_REQUIRES(mutex_) {
    TableOf(roles_[peer.id]).SetSuspect(peer.id, false);
    return absl::StrCat(peer.name, " is heard of again");
  }

  std::string Leave(const PeerInfo& peer) MOEBIUS_REQUIRES(mutex_) {
    const auto role = roles_.find(peer.id);
    if (role == roles_.end()) return "";
    SlotTable& table = TableOf(role->second);
    roles_.erase(role);
    assignments_.erase(peer.id);
    addresses_.erase(peer.id);
    if (const std::optional<int32_t> index = table.Leave(peer.id)) Assign(table, *index);
    return absl::StrCat(peer.name, " has gone: ", peer.reason.message());
  }

  // --- Slots.

  void Assign(SlotTable& table, int32_t index) MOEBIUS_REQUIRES(mutex_) {
    if (table.role() == Role::kExpert) {
      SlotAssignment slot = SlotOf(table, index);
      slot.held = placement_.HeldBy(ServiceId(index));
      SendAssignment(table.slot(index).peer, slot);
      return;
    }
    std::vector<std::string> addresses;
    for (int32_t rank = 0; rank < table.count(); ++rank) {
      addresses.push_back(table.slot(rank).data_address);
    }
    for (int32_t rank = 0; rank < table.count(); ++rank) {
      if (table.slot(rank).state == SlotState::kEmpty) continue;
      SlotAssignment slot = SlotOf(table, rank);
      slot.rank_addresses = addresses;
      table.SetState(rank, table.slot(rank).peer, SlotState::kLoading, absl::OkStatus());
      SendAssignment(table.slot(rank).peer, slot);
    }
  }

  SlotAssignment SlotOf(const SlotTable& table, int32_t index) const MOEBIUS_REQUIRES(mutex_) {
    SlotAssignment slot;
    slot.role = table.role();
    slot.index = index;
    slot.count = table.count();
    slot.term = options_.term;
    slot.epoch = placement_.epoch();
    slot.row_budget = options_.row_budget;
    return slot;
  }

  // A slot that cannot be sent is not missed: the peer is gone, and its death follows.
  void SendAssignment(PeerId peer, SlotAssignment slot) MOEBIUS_REQUIRES(mutex_) {
    slot.number = ++next_assignment_;
    assignments_[peer] = slot.number;
    static_cast<void>(transport_->Send(peer, Lane::kControl, BuildSlotAssignment(slot)));
  }

  void OnReport(PeerId peer, const absl::StatusOr<SlotReady>& report) MOEBIUS_EXCLUDES(mutex_) {
    std::string notice, name, address;
    {
      MutexLock lock(mutex_);
      const auto role = roles_.find(peer);
      if (role == roles_.end()) return;
      SlotTable& table = TableOf(role->second);
      const std::optional<int32_t> index = table.IndexOf(peer);
      if (!index.has_value()) return;
      // Of an assignment that another has replaced.
      if (report.ok() && report->number != assignments_[peer]) return;
      notice = TakeReport(table, *index, peer, report);
      name = table.slot(*index).name;
      address = addresses_[peer];
      Changed();
    }
    MemberNotice(address, name, notice);
  }

  std::string TakeReport(SlotTable& table, int32_t index, PeerId peer,
                         const absl::StatusOr<SlotReady>& report) MOEBIUS_REQUIRES(mutex_) {
    const std::string& name = table.slot(index).name;
    const absl::Status failure = report.ok() ? report->status : report.status();
    if (!failure.ok()) {
      const SlotState state = table.slot(index).state;
      const bool had_it = state == SlotState::kCanary || state == SlotState::kUsable;
      const bool drains = had_it && absl::IsUnavailable(failure);
      table.SetState(index, peer, drains ? SlotState::kDraining : SlotState::kFailed, failure);
      // A canary that is under way brings nothing back.
      if (table.role() == Role::kExpert) {
        canary_attempts_[static_cast<size_t>(index)] = ++next_canary_;
      }
      return absl::StrCat(
          name, had_it ? " gives its slot up: " : " cannot take its slot: ", failure.message());
    }
    table.SetReport(index, peer, *report);
    if (report->phase != SlotPhase::kReady) return "";
    if (table.role() == Role::kExpert) {
      SendCanary(index, peer);
      return absl::StrCat(name, " is loaded, ", report->loaded_bytes, " bytes");
    }
    table.SetState(index, peer, SlotState::kUsable, absl::OkStatus());
    return absl::StrCat(name, " is usable, ", report->loaded_bytes, " bytes");
  }

  // --- Canaries.

  void SendCanary(int32_t index, PeerId peer) MOEBIUS_REQUIRES(mutex_) {
    const std::vector<HeldExpert> held = placement_.HeldBy(ServiceId(index));
    if (held.empty()) {
      experts_.SetState(index, peer, SlotState::kUsable, absl::OkStatus());
      return;
    }
    experts_.SetState(index, peer, SlotState::kCanary, absl::OkStatus());
    const uint32_t attempt = ++next_canary_;
    canary_attempts_[static_cast<size_t>(index)] = attempt;
    MessageKey key;
    key.kind = kDispatchKind;
    key.step = kCanaryStep;
    key.attempt = attempt;
    key.layer = static_cast<uint32_t>(held.front().layer.value());
    ReservationSpec reply;
    reply.source = peer;
    reply.key = key;
    reply.key.kind = kDispatchReplyKind;
    reply.max_message_bytes = MaxReplyBytes(1, options_.hidden_size);
    reply.deadline = reactor_->clock().Now() + options_.canary_timeout;
    reply.on_delivery = [weak = weak_from_this(), index, peer, attempt](const Delivery& delivery) {
      if (const std::shared_ptr<Impl> self = weak.lock()) {
        self->OnCanary(index, peer, attempt, delivery.message);
      }
    };
    const auto reservation = transport_->Reserve(std::move(reply));
    absl::Status status = reservation.status();
    if (status.ok()) {
      Message canary = BuildCanary(key, held.front().id, placement_.epoch(), options_.hidden_size);
      canary.term = options_.term;
      canary.epoch = placement_.epoch().value();
      canary.budget_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.canary_timeout));
      status = transport_->Send(peer, Lane::kDecode, std::move(canary)).status();
      if (!status.ok()) transport_->CancelReservation(*reservation);
    }
    if (!status.ok()) CanaryFailed(index, peer, attempt, status);
  }

  void OnCanary(int32_t index, PeerId peer, uint32_t attempt,
                const absl::StatusOr<Message>& message) MOEBIUS_EXCLUDES(mutex_) {
    const absl::Status status = CheckCanary(message, options_.hidden_size);
    std::string notice, name, address;
    {
      MutexLock lock(mutex_);
      // Of a former life, or of a slot that was loaded again since.
      if (canary_attempts_[static_cast<size_t>(index)] != attempt) return;
      if (experts_.slot(index).peer != peer) return;
      name = experts_.slot(index).name;
      address = addresses_[peer];
      if (status.ok()) {
        experts_.SetState(index, peer, SlotState::kUsable, absl::OkStatus());
        notice = absl::StrCat(name, " is usable: a canary row went round");
      } else {
        notice = absl::StrCat(name, ": the canary row failed: ", status.message());
        CanaryFailed(index, peer, attempt, status);
      }
      Changed();
    }
    MemberNotice(address, name, notice);
  }

  void CanaryFailed(int32_t index, PeerId peer, uint32_t attempt, const absl::Status& status)
      MOEBIUS_REQUIRES(mutex_) {
    experts_.SetState(index, peer, SlotState::kFailed, status);
    reactor_->RunAt(reactor_->clock().Now() + options_.canary_retry,
                    [weak = weak_from_this(), index, peer, attempt] {
                      if (const std::shared_ptr<Impl> self = weak.lock()) {
                        self->RetryCanary(index, peer, attempt);
                      }
                    });
  }

  void RetryCanary(int32_t index, PeerId peer, uint32_t attempt) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const Slot& slot = experts_.slot(index);
    if (slot.state != SlotState::kFailed || slot.peer != peer) return;
    if (canary_attempts_[static_cast<size_t>(index)] != attempt) return;
    SendCanary(index, peer);
    Changed();
  }

  // --- Who wants to know.

  void Changed() MOEBIUS_REQUIRES(mutex_) {
    version_.fetch_add(1, std::memory_order_release);
    changed_.SignalAll();
    if (std::exchange(notifying_, true)) return;
    reactor_->Post([weak = weak_from_this()] {
      if (const std::shared_ptr<Impl> self = weak.lock()) self->Notify();
    });
  }

  void Notify() MOEBIUS_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      notifying_ = false;
    }
    listeners_.Call();
  }

  const RosterOptions options_;
  std::atomic<uint64_t> num_refused_{0};
  const Placement& placement_;
  std::atomic<uint64_t> version_{0};
  ListenerList listeners_;

  mutable Mutex mutex_;
  mutable CondVar changed_;
  Transport* transport_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  Reactor* reactor_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  SlotTable experts_ MOEBIUS_GUARDED_BY(mutex_);
  SlotTable attention_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<PeerId, Role> roles_ MOEBIUS_GUARDED_BY(mutex_);             // of all that are connected
  std::map<PeerId, std::string> addresses_ MOEBIUS_GUARDED_BY(mutex_);  // that they came from
  std::map<PeerId, uint64_t> assignments_ MOEBIUS_GUARDED_BY(mutex_);   // the last number of each
  uint64_t next_assignment_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> canary_attempts_ MOEBIUS_GUARDED_BY(mutex_);  // by expert slot, the last
  uint32_t next_canary_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  bool notifying_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

Roster::Roster(const RosterOptions& options, const Placement& placement)
    : impl_(std::make_shared<Impl>(options, placement)) {}
Roster::~Roster() = default;
absl::Status Roster::Start(Transport& transport, Reactor& reactor) {
  return impl_->Start(transport, reactor);
}
absl::Status Roster::AdmitPeer(const PeerInfo& peer) { return impl_->AdmitPeer(peer); }

void Roster::OnLinkRefused(const LinkFacts& facts, const absl::Status& reason) {
  impl_->NoteRefusal("a process", facts.remote, reason);
}
void Roster::OnPeerState(const PeerInfo& peer) { impl_->OnPeerState(peer); }
uint64_t Roster::num_refused() const { return impl_->num_refused(); }
std::optional<PeerId> Roster::ExpertPeer(ServiceId service) const {
  return impl_->PeerOf(Role::kExpert, service.value());
}
std::optional<PeerId> Roster::AttentionPeer(int32_t rank) const {
  return impl_->PeerOf(Role::kAttention, rank);
}
bool Roster::IsExpertUsable(ServiceId service) const {
  return impl_->IsExpertUsable(service.value());
}
bool Roster::IsAttentionUsable(int32_t rank) const { return impl_->IsAttentionUsable(rank); }
void Roster::NoteGone(PeerId peer) { impl_->NoteGone(peer); }
uint64_t Roster::version() const { return impl_->version(); }
PeerDirectory::ListenerId Roster::AddListener(std::function<void()> on_change) {
  return impl_->listeners().Add(std::move(on_change));
}
void Roster::RemoveListener(ListenerId id) { impl_->listeners().Remove(id); }
std::vector<std::string> Roster::Missing() const { return impl_->Missing(); }
std::vector<std::string> Roster::Unserved() const { return impl_->Unserved(); }
Roster::Replicas Roster::FewestReplicas() const { return impl_->FewestReplicas(); }
std::vector<Member> Roster::members() const { return impl_->members(); }
bool Roster::WaitUntilComplete(absl::Duration timeout) const {
  return impl_->WaitUntilComplete(timeout);
}

}  // namespace moebius
