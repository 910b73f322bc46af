// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

namespace moebius {

/// A stub of the service `Api` on a port of this host.
template <typename Api>
std::unique_ptr<typename Api::Stub> StubAt(const std::string& address) {
  return Api::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

}  // namespace moebius
