// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>

#include "moebius/transport/grpc/channel_keeper.h"
#include "moebius/transport/grpc/grpc_options.h"
#include "moebius/transport/grpc/grpc_stream.h"

namespace moebius {

/// A link to `address` over a connection of its own, which is opened when the link is started and
/// left to `keeper` in the end.
std::unique_ptr<Link> MakeClientLink(const GrpcOptions& options, const Address& address,
                                     std::shared_ptr<grpc::ChannelCredentials> credentials,
                                     std::shared_ptr<StreamCount> count, ChannelKeeper& keeper);

/// The identity that TLS has proved: the first of URI, DNS and other alternative names, else the
/// common name; empty without TLS.
std::string ProvedIdentity(const grpc::AuthContext& context);

/// What gRPC says of the end of a link, without details: the data plane sends none.
absl::Status LinkEndStatus(const grpc::Status& status);

}  // namespace moebius
