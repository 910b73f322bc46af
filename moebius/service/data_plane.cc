// SPDX-License-Identifier: Apache-2.0
#include "moebius/service/data_plane.h"

#include <algorithm>
#include <array>
#include <utility>

#include "moebius/base/clock.h"
#include "moebius/base/status.h"
#include "moebius/service/exit_status.h"
#include "moebius/service/process.h"
#include "moebius/transport/grpc/grpc_provider.h"
#include "moebius/transport/shm/shm_provider.h"
#include "moebius/wire/slot_codec.h"

namespace moebius {
namespace {

constexpr uint64_t kFramePayloadBytes = uint64_t{1} << 20;
// Control, decode, bulk; each at least two frames.
constexpr std::array<uint64_t, kNumLanes> kWindowBytes = {4 << 20, 4 << 20, 8 << 20};
// One thread that polls sockets is enough for so many that compute.
constexpr int kThreadsPerPoller = 4;
// Rows of one message: a bound for the counts alone, the bytes are bounded apart.
constexpr uint64_t kMaxMessageRows = uint64_t{1} << 22;
// What the longest list in a message needs: a slot that holds every expert.
constexpr uint64_t kMaxMetadataBytes = uint64_t{16} << 20;
static_assert(kMaxMetadataBytes >= kMaxHeldExperts * 12);

}  // namespace

FrameLimits BuildClusterLimits(const ModelConfig& config) {
  const AttentionConfig& attention = config.attention;
  // Hidden rows, keys and values of a position, or a head's accumulator with its maximum and sum.
  const int64_t kv_width =
      int64_t{attention.num_kv_heads} * (int64_t{attention.qk_head_dim} + attention.v_head_dim);
  const int64_t state_width = int64_t{attention.num_query_heads} *
                              (int64_t{std::max(attention.qk_head_dim, attention.v_head_dim)} + 2);
  FrameLimits limits;
  limits.max_payload_bytes = kFramePayloadBytes;
  limits.max_message_bytes = kMaxMessageBytes;
  limits.max_metadata_bytes = kMaxMetadataBytes;
  limits.max_num_rows = kMaxMessageRows;
  limits.max_row_width =
      static_cast<uint32_t>(std::max({config.hidden_size, kv_width, state_width}));
  limits.max_layer = static_cast<uint32_t>(config.num_layers - 1);
  limits.max_round = 0xffff;
  limits.max_micro_batch = 0xff;
  return limits;
}

absl::StatusOr<std::unique_ptr<LinkProvider>> MakeLinkProvider(const std::string& transport,
                                                               const ServiceConfig& config,
                                                               const FrameLimits& limits,
                                                               RefusalNotice on_refusal) {
  if (transport == "shm") {
    if (config.tls.has_value()) {
      return absl::InvalidArgumentError("--transport shm does not leave this host: it has no TLS");
    }
    ShmOptions options;
    options.max_payload_bytes = limits.max_payload_bytes;
    options.on_refusal = std::move(on_refusal);
    BoundByDescriptors(MaxDescriptors(), &options);
    MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<LinkProvider> provider,
                             ShmLinkProvider::Make(options));
    return provider;
  }
  GrpcOptions options;
  options.max_payload_bytes = limits.max_payload_bytes;
  options.max_polling_threads = std::max(1, config.num_threads / kThreadsPerPoller);
  options.on_refusal = std::move(on_refusal);
  BoundByDescriptors(MaxDescriptors(), &options);
  options.allow_insecure = config.exposure == Exposure::kInsecureAllowed;
  MOEBIUS_ASSIGN_OR_RETURN(std::unique_ptr<LinkProvider> provider,
                           GrpcLinkProvider::Make(options, config.tls));
  return provider;
}

DataPlane::DataPlane()
    : reactor_(Clock::Monotonic()), pulse_(std::make_shared<ReactorPulse>(reactor_)) {}

DataPlane::~DataPlane() {
  pulse_->Detach();
  // Says goodbye while reactions still run.
  transport_.reset();
  thread_.reset();
}

absl::StatusOr<std::unique_ptr<DataPlane>> DataPlane::Make(DataPlaneOptions options,
                                                           LinkProvider& provider,
                                                           PeerWatcher& watcher) {
  std::unique_ptr<DataPlane> plane(new DataPlane());
  TransportOptions transport;
  transport.name = options.name;
  transport.limits = options.limits;
  transport.greeting = EncodeGreeting(options.greeting);
  transport.window_bytes = kWindowBytes;
  MOEBIUS_ASSIGN_OR_RETURN(plane->transport_,
                           Transport::Make(transport, provider, plane->reactor_, watcher));
  if (options.listen.has_value()) {
    auto address = plane->transport_->Listen(*options.listen);
    if (!address.ok()) return WithExitCode(address.status(), kExitBind);
    plane->address_ = *std::move(address);
    MOEBIUS_ASSIGN_OR_RETURN(const Address advertised,
                             AdvertisedAddress(*plane->address_, options.advertise));
    // Nobody has been greeted yet: the reactor does not run.
    options.greeting.data_address = FormatAddress(advertised);
    plane->transport_->SetGreeting(EncodeGreeting(options.greeting));
  }
  plane->thread_ = std::make_unique<ReactorThread>(plane->reactor_);
  return plane;
}

}  // namespace moebius
