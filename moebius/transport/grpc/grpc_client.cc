// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

constexpr char kStreamMethod[] = "/moebius.api.data.v1.Data/Stream";

// The dialing end. Its hold keeps the call alive for writes that come from outside gRPC; it goes
// when no more can come.
class ClientStream final : public GrpcStream,
                           public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  ClientStream(const GrpcOptions& options, const Address& address,
               std::shared_ptr<grpc::ChannelCredentials> credentials,
               std::shared_ptr<StreamCount> count, ChannelKeeper& keeper)
      : GrpcStream({options.max_payload_bytes, options.max_outstanding_bytes}, std::move(count)),
        keeper_(keeper),
        options_(options),
        address_(address),
        credentials_(std::move(credentials)) {
    SetFacts({FormatAddress(address_), "", false});
  }
  ~ClientStream() override { keeper_.Keep(std::move(channel_)); }

 protected:
  void Open() override {
    channel_ = grpc::CreateCustomChannel(GrpcTarget(address_), credentials_,
                                         BuildChannelArguments(options_));
    grpc::GenericStub stub(channel_);
    {
      MutexLock lock(mutex_);
      is_open_ = true;
      self_ = shared_from_this();
      stub.PrepareBidiStreamingCall(&context_, kStreamMethod, grpc::StubOptions(), this);
      AddHold();
    }
    StartRead(&read_buffer_);
    StartCall();
  }
  void BeginRead(grpc::ByteBuffer* buffer) override { StartRead(buffer); }
  void BeginWrite(const grpc::ByteBuffer* buffer, Flush flush) override MOEBIUS_REQUIRES(mutex_) {
    StartWrite(buffer, WriteOptionsOf(flush));
  }
  void EndWriting() override MOEBIUS_REQUIRES(mutex_) { StartWritesDone(); }
  void OnWritesOver() override MOEBIUS_REQUIRES(mutex_) {
    if (is_open_ && !std::exchange(is_hold_gone_, true)) RemoveHold();
  }
  void Cancel() override {
    context_.TryCancel();
    // No read may be under way that would tell of the end.
    MutexLock lock(mutex_);
    End();
  }
  void Refuse() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (ok && !std::exchange(has_read_, true)) {
      SetFacts({FormatAddress(address_), ProvedIdentity(*context_.auth_context()), false});
    }
    OnRead(ok);
  }
  void OnWriteDone(bool ok) override { OnWritten(ok); }
  void OnDone(const grpc::Status& status) override {
    OnOver(LinkEndStatus(status));
    std::shared_ptr<GrpcStream> self;  // made before the lock, so it goes after it
    MutexLock lock(mutex_);
    self.swap(self_);
  }

 private:
  ChannelKeeper& keeper_;
  const GrpcOptions options_;
  const Address address_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  bool has_read_ = false;
  bool is_open_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_hold_gone_ MOEBIUS_GUARDED_BY(mutex_) = false;
  // What keeps the stream when its link has gone.
  std::shared_ptr<GrpcStream> self_ MOEBIUS_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Link> MakeClientLink(const GrpcOptions& options, const Address& address,
                                     std::shared_ptr<grpc::ChannelCredentials> credentials,
                                     std::shared_ptr<StreamCount> count, ChannelKeeper& keeper) {
  return std::make_unique<GrpcLink>(std::make_shared<ClientStream>(
      options, address, std::move(credentials), std::move(count), keeper));
}

std::string ProvedIdentity(const grpc::AuthContext& context) {
  if (!context.IsPeerAuthenticated()) return "";
  for (const char* property :
       {"peer_uri", "peer_dns", "x509_subject_alternative_name", "x509_common_name"}) {
    const auto values = context.FindPropertyValues(property);
    if (!values.empty()) return std::string(values[0].data(), values[0].size());
  }
  return "";
}

absl::Status LinkEndStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  // The codes are the same numbers by design.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat("grpc: ", status.error_message()));
}

}  // namespace moebius
