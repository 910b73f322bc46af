// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/transport/faulty/faulty.h"
#include "moebius/transport/link.h"
#include "moebius/transport/reactor.h"
#include "moebius/transport/transport.h"

namespace moebius {

/// What one implementation brings to the suite.
class Medium {
 public:
  virtual ~Medium() = default;
  virtual LinkProvider& provider() = 0;
  /// Where a node of the test listens; port 0.
  virtual Address listen_address() const { return {"127.0.0.1", 0}; }
  /// Its I/O happens on other threads: what is expected takes real time, though timers do not.
  virtual bool takes_real_time() const = 0;
};

/// The parameter of the suite: a name, and how to make a medium whose timers, if it has any, are
/// the reactor's.
struct MediumFactory {
  std::string name;
  std::function<std::unique_ptr<Medium>(Reactor& reactor)> make;
};

inline void PrintTo(const MediumFactory& factory, std::ostream* out) { *out << factory.name; }

/// One process of a test: a transport that takes every message of kind kOpenKind and remembers what
/// it heard.
class Node final : public PeerWatcher {
 public:
  /// Messages of this kind are always expected; of others only after Reserve.
  static constexpr FrameKind kOpenKind{16};
  static constexpr FrameKind kClosedKind{17};

  Node(const TransportOptions& options, LinkProvider& provider, Reactor& reactor);

  Transport& transport() { return *transport_; }
  absl::Status AdmitPeer(const PeerInfo& peer) override { return admission; }
  void OnLinkRefused(const LinkFacts& facts, const absl::Status& reason) override;
  void OnPeerState(const PeerInfo& peer) override;

  /// What arrived, by any reservation made here, in order.
  std::vector<Delivery> deliveries() const;
  size_t num_deliveries() const;
  std::vector<PeerInfo> history() const;
  /// The connected (or suspect) peer of that name; PeerId() when there is none.
  PeerId PeerNamed(const std::string& name) const;
  /// The last state heard of a peer.
  PeerState StateOf(PeerId id) const;
  absl::Status ReasonOf(PeerId id) const;
  /// Why links were refused whose first frame was no hello.
  std::vector<absl::Status> refusals() const;
  ReservationId Reserve(ReservationSpec spec);
  std::function<void(Delivery)> Record();

  absl::Status admission;
  /// Runs inside each delivery.
  std::function<void(const Delivery&)> on_delivery;
  /// Runs inside each call of OnPeerState.
  std::function<void(const PeerInfo&)> on_peer_state;

 private:
  mutable Mutex mutex_;
  std::vector<Delivery> deliveries_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<PeerInfo> history_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<absl::Status> refusals_ MOEBIUS_GUARDED_BY(mutex_);
  std::unique_ptr<Transport> transport_;
};

/// Several nodes in this process over one medium, with a clock that stands still. Each node's
/// outgoing frames can be disturbed by a plan of its own.
class TransportWorld {
 public:
  explicit TransportWorld(const MediumFactory& factory);
  ~TransportWorld();

  /// Small numbers, so that windows and limits are reached fast.
  static TransportOptions SmallOptions(const std::string& name);

  /// No faults yet; lives as long as the world.
  FaultPlan& NewPlan(uint64_t seed);
  /// Its frames go through a FaultyProvider with `plan` when there is one.
  Node& Add(const TransportOptions& options, const FaultPlan* plan = nullptr);
  void Remove(Node& node);
  Address Listen(Node& node);
  /// Connects, and returns when both ends are connected: the dialer's id of the peer.
  PeerId Connect(Node& from, const Address& to, const std::string& to_name);

  /// Runs what is ready until `condition` holds; false when it does not come (after 10 s of real
  /// time where I/O takes some). The clock stands still.
  bool Until(const std::function<bool()>& condition);
  /// Runs what is ready, and gives I/O a moment.
  void Settle();
  /// Moves the clock from timer to timer.
  void Advance(absl::Duration by);

  const Clock& clock() const { return clock_; }
  Reactor& reactor() { return reactor_; }
  Medium& medium() { return *medium_; }

 private:
  FakeClock clock_;
  Reactor reactor_{clock_};
  std::unique_ptr<Medium> medium_;
  std::vector<std::unique_ptr<FaultPlan>> plans_;
  std::vector<std::unique_ptr<FaultyProvider>> faulty_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

/// A bare link, for what no good peer would do.
class RawLink final : public LinkSink {
 public:
  RawLink(LinkProvider& provider, const Address& address, Lane lane);
  ~RawLink() override;
  /// Writes the frame, or keeps trying when told that there is room.
  void Write(WireFrame frame);
  /// A frame of the transport or a message, sealed with the next sequence.
  void WriteSealed(Frame frame, uint64_t incarnation);
  void OnFrame(WireFrame frame) override;
  void OnWritable() override;
  void OnClosed(absl::Status reason) override;
  bool closed() const;
  std::vector<WireFrame> frames() const;

 private:
  mutable Mutex mutex_;
  std::vector<WireFrame> frames_ MOEBIUS_GUARDED_BY(mutex_);
  std::vector<WireFrame> unsent_ MOEBIUS_GUARDED_BY(mutex_);
  bool closed_ MOEBIUS_GUARDED_BY(mutex_) = false;
  uint64_t sequence_ = 0;
  std::unique_ptr<Link> link_;
};

/// A message whose every byte says where it belongs: [num_rows, row_width] fp32, row r of message
/// `step` holds step · 1000 + r, and the metadata is the step as text.
Message PositionMessage(FrameKind kind, uint64_t step, uint64_t num_rows, uint32_t row_width);
/// Empty when `message` is what PositionMessage made, else what differs.
std::string Difference(const Message& message);

/// Open descriptors of this process.
size_t NumDescriptors();

class TransportConformance : public ::testing::TestWithParam<MediumFactory> {
 protected:
  TransportWorld world_{GetParam()};
};

}  // namespace moebius
