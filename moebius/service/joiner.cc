// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/joiner.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/proved_role.h"

namespace moebius {
namespace {

// How often progress is told; what is loaded in less time needs none.
constexpr absl::Duration kProgressInterval = absl::Milliseconds(200);

constexpr absl::string_view kRefusalHint =
    "compare what --print-config shows of both: the model folder, --span, --group-fill, "
    "--attention-sum and --dtype must be the same";

// A slot and the life of the router that gave it.
struct GivenSlot {
  SlotAssignment slot;
  PeerId peer;
  uint64_t life = 0;
  size_t router = 0;  // of JoinerOptions::routers
};

// What is known of one router.
struct RouterSide {
  std::string address;     // as it is dialed; never changes
  uint64_t life = 0;       // its incarnation; 0: it is not there
  uint64_t term_life = 0;  // the incarnation that said `term`
  uint64_t term = 0;
  std::optional<GivenSlot> pending;
  std::optional<GivenSlot> taken;  // its last slot that was loaded
  JoinState state;
  bool refused = false;
};

SlotReady Failed(uint64_t number, const absl::Status& status) {
  SlotReady report;
  report.number = number;
  report.phase = SlotPhase::kFailed;
  report.status = status;
  return report;
}

std::string SlotWords(const SlotAssignment& slot) {
  return absl::StrCat(RoleName(slot.role), " slot ", slot.index, " of ", slot.count);
}

// How much a state says of what the process is for; the largest is shown.
int Rank(JoinState::Phase phase) {
  switch (phase) {
    case JoinState::Phase::kReady:
      return 5;
    case JoinState::Phase::kLoading:
      return 4;
    case JoinState::Phase::kSpare:
      return 3;
    case JoinState::Phase::kWaiting:
      return 2;
    case JoinState::Phase::kFailed:
      return 1;
    case JoinState::Phase::kDialing:
      break;
  }
  return 0;
}

}  // namespace

absl::StatusOr<SlotAssignment> MergeSlots(const SlotAssignment& slot,
                                          absl::Span<const SlotAssignment> others) {
  SlotAssignment merged = slot;
  for (const SlotAssignment& other : others) {
    if (slot.row_budget > other.row_budget) {
      return WithHint(absl::FailedPreconditionError(absl::StrCat(
                          "steps of ", slot.row_budget, " rows: another router has room for ",
                          other.row_budget, " here")),
                      "give all routers that share an expert service the same --row-budget");
    }
    merged.held.insert(merged.held.end(), other.held.begin(), other.held.end());
    merged.row_budget = std::max(merged.row_budget, other.row_budget);
  }
  std::sort(merged.held.begin(), merged.held.end());
  merged.held.erase(std::unique(merged.held.begin(), merged.held.end()), merged.held.end());
  return merged;
}

class Joiner::Impl {
 public:
  Impl(const JoinerOptions& options, Participant& participant)
      : options_(options), participant_(participant), routers_(options.routers.size()) {
    for (size_t i = 0; i < routers_.size(); ++i) {
      routers_[i].address = FormatAddress(options.routers[i]);
      addresses_.push_back(routers_[i].address);
    }
  }

  absl::Status Start(Transport& transport) {
    {
      MutexLock lock(mutex_);
      transport_ = &transport;
    }
    ReservationSpec slots;
    slots.scope = ReservationScope::kKind;
    slots.key.kind = kAssignSlotKind;
    slots.max_message_bytes = options_.max_slot_bytes;
    slots.max_messages = static_cast<uint32_t>(std::max<size_t>(addresses_.size(), 1));
    slots.on_delivery = [this](Delivery delivery) { OnSlot(std::move(delivery)); };
    MOEBIUS_RETURN_IF_ERROR(transport.Reserve(std::move(slots)).status());
    thread_ = std::thread([this] { LoadUntilStopped(); });
    for (const Address& router : options_.routers) {
      MOEBIUS_RETURN_IF_ERROR(transport.Connect(router).status());
    }
    return absl::OkStatus();
  }

  void Stop() MOEBIUS_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      stopping_ = true;
      changed_.SignalAll();
    }
    // A slot that comes from now on is put down and never taken.
    if (thread_.joinable()) thread_.join();
  }

  void Retire(const absl::Status& why) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!retired_.ok()) return;
    retired_ = why;
    for (const RouterSide& router : routers_) {
      if (router.taken.has_value() && IsCurrent(*router.taken)) {
        Report(router.taken->peer, Failed(router.taken->slot.number, retired_));
      }
    }
  }

  JoinState state() const MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    JoinState shown;
    std::string words;
    for (const RouterSide& router : routers_) {
      if (words.empty() || Rank(router.state.phase) > Rank(shown.phase)) shown = router.state;
      absl::StrAppend(&words, words.empty() ? "" : "; ", router.address, ": ", router.state.words);
    }
    if (routers_.size() > 1) shown.words = words;
    return shown;
  }

  absl::Status AdmitPeer(const PeerInfo& peer) {
    const auto greeting = ParseGreeting(peer.greeting);
    if (!greeting.ok()) return greeting.status();
    MOEBIUS_RETURN_IF_ERROR(CheckProvedRole(peer.facts.identity, greeting->role));
    return CheckGreeting(options_.own, *greeting, options_.near);
  }

  void OnPeerState(const PeerInfo& peer) MOEBIUS_EXCLUDES(mutex_) {
    const std::optional<size_t> router = RouterOf(peer);
    if (!router.has_value()) {
      participant_.OnPeerState(peer);
    } else if (peer.state == PeerState::kConnected) {
      RouterUp(*router, peer);
    } else if (peer.state == PeerState::kDead) {
      RouterDown(*router, peer);
    }
  }

 private:
  // The address is what was dialed, so it is known before Connect has returned.
  std::optional<size_t> RouterOf(const PeerInfo& peer) const {
    for (size_t i = 0; peer.dialed && i < addresses_.size(); ++i) {
      if (peer.address == addresses_[i]) return i;
    }
    return std::nullopt;
  }

  void RouterUp(size_t index, const PeerInfo& peer) MOEBIUS_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (stopping_ || routers_[index].life == peer.incarnation) return;  // suspect no more
    }
    Notice(absl::StrCat("joined ", peer.name, " at ", peer.address));
    participant_.OnRouterUp(peer);
    // A slot may have come before this news of its router; it waits until now.
    MutexLock lock(mutex_);
    RouterSide& router = routers_[index];
    router.life = peer.incarnation;
    SetPhase(router, JoinState::Phase::kWaiting,
             absl::StrCat("joined ", peer.name, ", waiting for a slot"));
    changed_.SignalAll();
  }

  void RouterDown(size_t index, const PeerInfo& peer) MOEBIUS_EXCLUDES(mutex_) {
    bool was_up = false;
    bool tell_refusal = false;
    bool is_news = false;
    const std::string words =
        absl::StrCat("no router at ", peer.address, ": ", peer.reason.message());
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      RouterSide& router = routers_[index];
      was_up = std::exchange(router.life, 0) != 0;
      router.pending.reset();
      router.refused = router.refused || absl::IsFailedPrecondition(peer.reason);
      tell_refusal = IsRefusedByAll() && !std::exchange(told_refusal_, IsRefusedByAll());
      is_news = words != router.state.words;
      SetPhase(router, JoinState::Phase::kDialing, words);
    }
    if (is_news) Notice(words);
    if (was_up) participant_.OnRouterDown(peer);
    if (tell_refusal && options_.on_refused) {
      // The router's hint does not travel with its refusal.
      options_.on_refused(HintOf(peer.reason).empty() ? WithHint(peer.reason, kRefusalHint)
                                                      : peer.reason);
    }
  }

  bool IsRefusedByAll() const MOEBIUS_REQUIRES(mutex_) {
    return std::all_of(routers_.begin(), routers_.end(),
                       [](const RouterSide& router) { return router.refused; });
  }

  void OnSlot(Delivery delivery) MOEBIUS_EXCLUDES(mutex_) {
    if (!delivery.message.ok()) return;
    const Message& message = *delivery.message;
    absl::StatusOr<SlotAssignment> slot = ParseSlotAssignment(message);
    if (slot.ok() && slot->role != options_.own.role) {
      slot = absl::InvalidArgumentError(absl::StrCat("a slot for an ", RoleName(slot->role),
                                                     ", this is an ", RoleName(options_.own.role)));
    }
    MutexLock lock(mutex_);
    const absl::StatusOr<PeerInfo> peer = transport_->FindPeer(delivery.source);
    const std::optional<size_t> index = peer.ok() ? RouterOf(*peer) : std::nullopt;
    if (!index.has_value()) return;  // gone, or none of the routers
    RouterSide& router = routers_[*index];
    if (message.incarnation != std::exchange(router.term_life, message.incarnation)) {
      router.term = 0;
    }
    if (slot.ok() && slot->term < router.term) {
      slot = absl::AbortedError(
          absl::StrCat("term ", slot->term, " is over, term ", router.term, " was seen"));
    }
    if (!slot.ok()) {
      Report(delivery.source, Failed(message.key.step, slot.status()));
      return;
    }
    router.term = slot->term;
    router.pending = GivenSlot{*std::move(slot), delivery.source, message.incarnation, *index};
    changed_.SignalAll();
  }

  // The next slot of a router that is there; nothing when the joiner stops.
  std::optional<GivenSlot> NextSlot() MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!stopping_) {
      for (RouterSide& router : routers_) {
        if (!router.pending.has_value() || router.pending->life != router.life) continue;
        GivenSlot given = *std::exchange(router.pending, std::nullopt);
        router.state.index = given.slot.index;
        if (given.slot.is_spare()) {
          router.taken.reset();
          SetPhase(router, JoinState::Phase::kSpare, "a spare: every slot is taken");
        } else {
          SetPhase(router, JoinState::Phase::kLoading,
                   absl::StrCat("loading ", SlotWords(given.slot)));
        }
        return given;
      }
      changed_.Wait(mutex_);
    }
    return std::nullopt;
  }

  void LoadUntilStopped() MOEBIUS_EXCLUDES(mutex_) {
    while (const std::optional<GivenSlot> given = NextSlot()) {
      if (given->slot.is_spare()) {
        Notice("every slot is taken; waiting as a spare");
      } else {
        LoadOne(*given);
      }
    }
  }

  absl::StatusOr<SlotAssignment> WithSlotsOfOthers(const GivenSlot& given) const
      MOEBIUS_EXCLUDES(mutex_) {
    std::vector<SlotAssignment> others;
    MutexLock lock(mutex_);
    for (size_t i = 0; i < routers_.size(); ++i) {
      if (i != given.router && routers_[i].taken.has_value())
        others.push_back(routers_[i].taken->slot);
    }
    return MergeSlots(given.slot, others);
  }

  void LoadOne(const GivenSlot& given) MOEBIUS_EXCLUDES(mutex_) {
    absl::Duration next_report = Clock::Monotonic().Now() + kProgressInterval;
    Mutex report_mutex;
    const Participant::Progress progress = [&](int64_t loaded, int64_t total) {
      MutexLock report_lock(report_mutex);
      const absl::Duration now = Clock::Monotonic().Now();
      if (now < next_report && loaded < total) return;
      next_report = now + kProgressInterval;
      MutexLock lock(mutex_);
      routers_[given.router].state.loaded_bytes = loaded;
      routers_[given.router].state.total_bytes = total;
      SlotReady report;
      report.number = given.slot.number;
      report.loaded_bytes = loaded;
      report.total_bytes = total;
      if (IsCurrent(given)) Report(given.peer, report);
    };
    const absl::StatusOr<SlotAssignment> merged = WithSlotsOfOthers(given);
    const absl::StatusOr<SlotReady> ready =
        merged.ok() ? participant_.Load(*merged, progress) : merged.status();
    SlotReady report = ready.ok() ? *ready : Failed(given.slot.number, ready.status());
    report.number = given.slot.number;
    if (ready.ok()) report.phase = SlotPhase::kReady;
    {
      MutexLock lock(mutex_);
      RouterSide& router = routers_[given.router];
      if (ready.ok()) router.taken = given;
      if (!IsCurrent(given)) return;
      if (ready.ok()) {
        router.state.loaded_bytes = router.state.total_bytes = ready->loaded_bytes;
        SetPhase(router, JoinState::Phase::kReady,
                 absl::StrCat("ready as ", SlotWords(given.slot)));
        if (!retired_.ok()) report = Failed(given.slot.number, retired_);
      } else {
        SetPhase(router, JoinState::Phase::kFailed,
                 absl::StrCat(SlotWords(given.slot), ": ", ready.status().message()));
      }
      Report(given.peer, report);
    }
    Notice(ready.ok() ? absl::StrCat("ready as ", SlotWords(given.slot), ", ", ready->loaded_bytes,
                                     " bytes of weights")
                      : FormatError(WithContext(ready.status(), SlotWords(given.slot))));
  }

  bool IsCurrent(const GivenSlot& given) const MOEBIUS_REQUIRES(mutex_) {
    const RouterSide& router = routers_[given.router];
    return !stopping_ && given.life == router.life && !router.pending.has_value();
  }

  // A report that cannot be sent is not missed: the router is gone, and asks again.
  void Report(PeerId router, const SlotReady& report) MOEBIUS_REQUIRES(mutex_) {
    static_cast<void>(transport_->Send(router, Lane::kControl, BuildSlotReady(report)));
  }

  static void SetPhase(RouterSide& router, JoinState::Phase phase, std::string words) {
    router.state.phase = phase;
    router.state.words = std::move(words);
  }

  void Notice(const std::string& text) const {
    if (options_.on_notice) options_.on_notice(text);
  }

  const JoinerOptions options_;
  Participant& participant_;
  std::vector<std::string> addresses_;  // of the routers
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar changed_;
  Transport* transport_ MOEBIUS_GUARDED_BY(mutex_) = nullptr;
  std::vector<RouterSide> routers_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Status retired_ MOEBIUS_GUARDED_BY(mutex_);  // not OK: why no work is taken any more
  bool told_refusal_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool stopping_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

Joiner::Joiner(const JoinerOptions& options, Participant& participant)
    : impl_(std::make_unique<Impl>(options, participant)) {}
Joiner::~Joiner() { Stop(); }
absl::Status Joiner::Start(Transport& transport) { return impl_->Start(transport); }
void Joiner::Stop() { impl_->Stop(); }
void Joiner::Retire(const absl::Status& why) { impl_->Retire(why); }
JoinState Joiner::state() const { return impl_->state(); }
absl::Status Joiner::AdmitPeer(const PeerInfo& peer) { return impl_->AdmitPeer(peer); }
void Joiner::OnPeerState(const PeerInfo& peer) { impl_->OnPeerState(peer); }

}  // namespace moebius
