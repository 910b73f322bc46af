// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_options.h"

#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

#include "moebius/base/error.h"
#include "moebius/transport/connection_bounds.h"
#include "moebius/transport/grpc/accept_loop.h"
#include "moebius/transport/grpc/grpc_frame.h"
#include "moebius/transport/lane.h"

namespace moebius {
namespace {

constexpr int kMaxMetadataBytes = 16 << 10;
// A stream's first flow-control window: two of the largest frames in flight, before gRPC has
// measured the path.
constexpr int kMinLookaheadBytes = 64 << 10;
// HTTP/2 frames of a large message: fewer headers to write and to parse.
constexpr int kMaxHttp2FrameBytes = 1 << 20;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

int LookaheadBytes(const GrpcOptions& options) {
  const uint64_t two = 2 * MaxGrpcMessageBytes(options.max_payload_bytes);
  return static_cast<int>(
      std::min<uint64_t>(std::max<uint64_t>(two, kMinLookaheadBytes), 16 << 20));
}

class NoReflection final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [](const auto& plugin) {
                                    return plugin->name() == "proto_server_reflection";
                                  }),
                   plugins->end());
  }
};

}  // namespace

void BoundByDescriptors(uint64_t max_descriptors, GrpcOptions* options) {
  const ConnectionBounds bounds =
      BoundedByDescriptors(max_descriptors, kDescriptorsPerConnection,
                           {options->max_connections, options->max_connections_per_address});
  options->max_connections = bounds.max_connections;
  options->max_connections_per_address = bounds.max_per_source;
}

uint64_t GrpcLinkBytes(const GrpcOptions& options) {
  const uint64_t frame = MaxGrpcMessageBytes(options.max_payload_bytes);
  return std::max(options.max_outstanding_bytes, frame) +
         static_cast<uint64_t>(LookaheadBytes(options)) + frame;
}

uint64_t MinGrpcMemoryBytes(const GrpcOptions& options) {
  return 2 * kNumLanes * GrpcLinkBytes(options);
}

absl::StatusOr<GrpcOptions> WithQuota(const GrpcOptions& options) {
  GrpcOptions result = options;
  if (result.quota != nullptr) return result;
  const uint64_t least = MinGrpcMemoryBytes(options);
  if (result.max_memory_bytes == 0) {
    result.max_memory_bytes = std::max(least, options.max_connections * GrpcLinkBytes(options));
  }
  if (result.max_memory_bytes < least) {
    return WithHint(absl::InvalidArgumentError(
                        absl::StrCat("grpc: max_memory_bytes is ", result.max_memory_bytes,
                                     ", the lanes of two peers need ", least)),
                    "allow more memory, or smaller frames");
  }
  auto quota = std::make_shared<grpc::ResourceQuota>("moebius");
  quota->Resize(result.max_memory_bytes);
  result.quota = std::move(quota);
  return result;
}

grpc::ChannelArguments BuildChannelArguments(const GrpcOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(options.connect_timeout));
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kGrpcClientPing));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kGrpcPingTimeout));
  // Each link has its own beats and quiet lanes have none: pings must not run out.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LookaheadBytes(options));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxHttp2FrameBytes);
  arguments.SetMaxReceiveMessageSize(
      static_cast<int>(MaxGrpcMessageBytes(options.max_payload_bytes)));
  arguments.SetMaxSendMessageSize(-1);
  if (options.quota != nullptr) arguments.SetResourceQuota(*options.quota);
  return arguments;
}

void SwitchReflectionOff(grpc::ServerBuilder& builder) {
  builder.SetOption(std::make_unique<NoReflection>());
}

void ConfigureServer(const GrpcOptions& options, grpc::ServerBuilder& builder) {
  SwitchReflectionOff(builder);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // The accept loop cuts and counts what is silent; this is for what it should miss.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             Milliseconds(2 * options.silence_limit));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(kGrpcClientPing));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(kGrpcPingTimeout));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Milliseconds(kGrpcMinPermittedPing));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LookaheadBytes(options));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxHttp2FrameBytes);
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(MaxGrpcMessageBytes(options.max_payload_bytes)));
  builder.SetMaxSendMessageSize(-1);
  if (options.quota != nullptr) builder.SetResourceQuota(*options.quota);
}

std::string GrpcTarget(const Address& address) {
  in_addr v4;
  if (IsIpv6(address)) {
    // A target is a URI: the zone's % is written as %25.
    return absl::StrCat("ipv6:", absl::StrReplaceAll(FormatAddress(address), {{"%", "%25"}}));
  }
  if (inet_pton(AF_INET, address.host.c_str(), &v4) == 1) {
    return absl::StrCat("ipv4:", FormatAddress(address));
  }
  return absl::StrCat("dns:///", FormatAddress(address));
}

std::string PeerAddress(const std::string& grpc_peer) {
  absl::string_view peer = grpc_peer;
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) {
    return grpc_peer;
  }
  return absl::StrReplaceAll(peer, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
}

}  // namespace moebius
