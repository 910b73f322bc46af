// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/telemetry/registry.h"
#include "moebius/transport/address.h"
#include "moebius/transport/frame/frame_header.h"
#include "moebius/transport/lane.h"

// The seam for those who add a way to carry frames: README.md is its guide. A link is one ordered
// pipe of frames; everything else (hello, credits, beats, peers, reservations, counters) is done
// above it, once, by Transport.

namespace moebius {

/// A frame as it crosses a link: the header's 128 bytes in private memory, and the payload.
struct WireFrame {
  EncodedHeader header;
  Payload payload;
};

/// What a link tells its user. OnFrame and OnClosed of one link never overlap and come in order;
/// OnWritable may come beside them. They may come from any thread, and never from inside a call of
/// the user on that link.
class LinkSink {
 public:
  virtual ~LinkSink() = default;
  /// The next frame from the other end, unchanged and unchecked: any 128 bytes and any payload.
  /// Returns when the frame has been consumed; not calling again until then is back-pressure.
  virtual void OnFrame(WireFrame frame) = 0;
  /// After TryWrite has refused: there is room now (or nothing to lose by trying).
  virtual void OnWritable() = 0;
  /// The link has ended; the last call. OK: the other end closed it in order.
  virtual void OnClosed(absl::Status reason) = 0;
};

/// Who is at the other end, as far as the link itself can tell.
struct LinkFacts {
  std::string remote;      // an address for people, e.g. "10.0.0.7:41200"
  std::string identity;    // proved by TLS, e.g. a SAN; empty where nothing is proved
  bool same_host = false;  // proved: checksums are optional
};

/// One ordered, reliable, bidirectional pipe of frames: one lane of one pair of processes.
/// All calls may come from any thread, one at a time.
class Link {
 public:
  /// Ends the link at once if it has not ended. No call of the sink runs or begins after the
  /// destructor has returned. Never destroyed from inside a call of its sink.
  virtual ~Link() = default;

  /// Called once, first. The sink outlives the link.
  virtual void Start(LinkSink& sink) = 0;

  /// Takes the frame (leaving it empty) and returns true, or leaves it as it is and returns false;
  /// then OnWritable follows when there is room again. Never blocks and never calls the sink.
  /// What it holds at once is bounded, by the link's own statement in its folder's README.
  virtual bool TryWrite(WireFrame& frame) = 0;

  /// Ends the link in order: what TryWrite took is delivered, then the other end sees
  /// OnClosed(OK), then this end sees OnClosed.
  virtual void Close() = 0;

  /// Valid from the first OnFrame on.
  virtual LinkFacts facts() const = 0;
};

/// Receives the links that others opened.
class LinkAcceptor {
 public:
  virtual ~LinkAcceptor() = default;
  /// A link that has not been started. May come from any thread, overlapping.
  virtual void OnLink(std::unique_ptr<Link> link) = 0;
};

/// Listens from its making to its destruction; OnLink has returned for good after that. Links that
/// it accepted live on.
class LinkListener {
 public:
  virtual ~LinkListener() = default;
  /// Where it listens, with the port that was chosen.
  virtual Address address() const = 0;
};

/// Lets a thread that waits for a delivery receive it itself: otherwise the thread of the provider
/// is woken by what arrives, and wakes the one that waits. See DeliveryCondVar.
class DeliveryPoller {
 public:
  virtual ~DeliveryPoller() = default;
  /// True: until Leave the caller's PollOnce calls all sinks, and nobody else does. False: another
  /// thread does so already; the caller waits for it to be told, then calls StopSleeping.
  virtual bool TryEnter() = 0;
  virtual void StopSleeping() = 0;
  /// Waits until something arrives, or Wake is called; calls the sinks. Between TryEnter and Leave.
  virtual void PollOnce() = 0;
  /// What arrives waits for the next TryEnter, but for a few milliseconds at most.
  virtual void Leave() = 0;
  /// Ends the PollOnce at hand, or the next one. Thread-safe.
  virtual void Wake() = 0;
};

/// A way to make links. Thread-safe; outlives its links and listeners.
class LinkProvider {
 public:
  virtual ~LinkProvider() = default;
  /// As long-lived as the provider; null where the provider's own threads alone call sinks.
  virtual DeliveryPoller* poller() { return nullptr; }
  /// "loopback", "grpc", "shm": a label of metrics.
  virtual absl::string_view name() const = 0;
  /// UNAVAILABLE at once when the port is taken, with the process that has it where that can be
  /// known; PERMISSION_DENIED by the rule of ValidateListenAddress. `acceptor` outlives the
  /// listener.
  virtual absl::StatusOr<std::unique_ptr<LinkListener>> Listen(const Address& address,
                                                               LinkAcceptor& acceptor) = 0;
  /// A link that is being opened; a failure to open it comes as OnClosed. Until it is open TryWrite
  /// may refuse. INVALID_ARGUMENT for addresses of a kind that it cannot reach.
  virtual absl::StatusOr<std::unique_ptr<Link>> Dial(const Address& address, Lane lane) = 0;
  /// What this kind of links alone has to tell, for a scrape.
  virtual void WriteMetrics(MetricWriter& /*writer*/) const {}
};

}  // namespace moebius
