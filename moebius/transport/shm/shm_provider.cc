// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/shm_provider.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/status.h"
#include "moebius/transport/frame/frame_limits.h"
#include "moebius/transport/shm/shared_segment.h"
#include "moebius/transport/shm/shm_link.h"
#include "moebius/transport/shm/shm_listener.h"

namespace moebius {
namespace {

absl::Status CheckRange(absl::string_view field, uint64_t value, uint64_t min, uint64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("shm: ", field, " is ", value, ", not in [", min, ", ", max, "]"));
}

uint64_t WholePages(uint64_t bytes) {
  return (bytes + kSegmentPageBytes - 1) / kSegmentPageBytes * kSegmentPageBytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmLinkProvider>> ShmLinkProvider::Make(const ShmOptions& options) {
  // Two of the largest frames that there can be.
  constexpr uint64_t kMaxRingBytes = uint64_t{1} << 30;
  MOEBIUS_RETURN_IF_ERROR(
      CheckRange("max_payload_bytes", options.max_payload_bytes, 1, kMaxMessageBytes));
  MOEBIUS_RETURN_IF_ERROR(CheckRange("max_handshakes", options.max_handshakes, 1, 1 << 20));
  auto context = std::make_unique<ShmContext>(options);
  const uint64_t min_ring_bytes = WholePages(context->MinRingBytes());
  context->ring_bytes = WholePages(options.ring_bytes == 0 ? min_ring_bytes : options.ring_bytes);
  MOEBIUS_RETURN_IF_ERROR(
      CheckRange("ring_bytes", context->ring_bytes, min_ring_bytes, kMaxRingBytes));
  MOEBIUS_RETURN_IF_ERROR(
      CheckRange("max_ring_bytes", options.max_ring_bytes, context->ring_bytes, kMaxRingBytes));
  MOEBIUS_ASSIGN_OR_RETURN(context->loop, PollLoop::Start());
  return std::unique_ptr<ShmLinkProvider>(new ShmLinkProvider(std::move(context)));
}

ShmLinkProvider::ShmLinkProvider(std::unique_ptr<ShmContext> context)
    : context_(std::move(context)) {}
ShmLinkProvider::~ShmLinkProvider() = default;

DeliveryPoller* ShmLinkProvider::poller() { return context_->loop.get(); }

absl::StatusOr<std::unique_ptr<LinkListener>> ShmLinkProvider::Listen(const Address& address,
                                                                      LinkAcceptor& acceptor) {
  return MakeShmListener(*context_, address, acceptor);
}

absl::StatusOr<std::unique_ptr<Link>> ShmLinkProvider::Dial(const Address& address, Lane) {
  if (address.port == 0 || !IsLoopback(address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: ", FormatAddress(address), " is no process of this host"));
  }
  return MakeDialedShmLink(*context_, address);
}

void ShmLinkProvider::WriteMetrics(MetricWriter& writer) const {
  const ShmFigures now = figures();
  writer.WriteGauge(Metric::kRpcConnections, static_cast<double>(now.open), {kShmPort});
  writer.WriteCounter(Metric::kRpcConnectionsRefused, static_cast<double>(now.crowded), {kShmPort});
  writer.WriteCounter(Metric::kTransportErrors, static_cast<double>(now.refused + now.silent_cut),
                      {name(), "handshake"});
}

ShmFigures ShmLinkProvider::figures() const {
  ShmFigures figures;
  figures.accepted = context_->accepted.load();
  figures.crowded = context_->crowded.load();
  figures.refused = context_->refused.load();
  figures.silent_cut = context_->silent_cut.load();
  figures.open = context_->open.load();
  figures.num_links = context_->num_links.load();
  figures.frames_sent = context_->frames_sent.load();
  figures.frames_received = context_->frames_received.load();
  figures.copied_bytes = context_->copied_bytes.load();
  figures.num_wakes = context_->num_wakes.load();
  figures.num_waits = context_->loop->num_waits();
  figures.buffers = context_->buffers.figures();
  return figures;
}

}  // namespace moebius
