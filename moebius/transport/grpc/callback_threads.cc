// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/callback_threads.h"

#include <grpc/support/cpu.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/version_info.h>

#include <algorithm>

#include "absl/time/time.h"

#include "moebius/base/mutex.h"
#include "proto/moebius/api/data/v1/data.grpc.pb.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::data::v1;

constexpr char kAnyMethod[] = "/moebius.api.data.v1.Data/Stream";
// A thread that is busy elsewhere comes later; nobody waits longer for it.
constexpr absl::Duration kPatience = absl::Seconds(1);

// What gRPC has started, where that is known: if it had fewer, the last one must not rest.
int NumCallbackThreads() {
#if GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51
  return std::clamp(static_cast<int>(gpr_cpu_num_cores()) / 2, 2, 16);
#else
  return 1;
#endif
}

// Of the whole process, as the threads are.
Mutex rest_mutex;
int num_at_rest MOEBIUS_GUARDED_BY(rest_mutex) = 0;

}  // namespace

// A call inside the process whose answer is taken by the thread that is to rest.
class GrpcCallbackThreads::Resting final
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit Resting(grpc::Server& server)
      : channel_(server.InProcessChannel(grpc::ChannelArguments())) {
    grpc::GenericStub stub(channel_);
    stub.PrepareBidiStreamingCall(&context_, kAnyMethod, grpc::StubOptions(), this);
    StartRead(&buffer_);
    StartCall();
    MutexLock lock(mutex_);
    while (!is_resting_ && !changed_.WaitWithTimeout(mutex_, kPatience)) continue;
  }
  ~Resting() override {
    MutexLock lock(mutex_);
    is_wanted_ = false;
    changed_.SignalAll();
    while (!is_over_) changed_.Wait(mutex_);
  }

  void OnReadDone(bool) override {
    MutexLock lock(mutex_);
    is_resting_ = true;
    changed_.SignalAll();
    while (is_wanted_) changed_.Wait(mutex_);
  }
  void OnDone(const grpc::Status&) override {
    MutexLock lock(mutex_);
    is_over_ = true;
    changed_.SignalAll();
  }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  grpc::ByteBuffer buffer_;
  Mutex mutex_;
  CondVar changed_;
  bool is_wanted_ MOEBIUS_GUARDED_BY(mutex_) = true;
  bool is_resting_ MOEBIUS_GUARDED_BY(mutex_) = false;
  bool is_over_ MOEBIUS_GUARDED_BY(mutex_) = false;
};

GrpcCallbackThreads::GrpcCallbackThreads(int max_polling)
    : service_(std::make_unique<pb::Data::WithRawCallbackMethod_Stream<pb::Data::Service>>()) {
  grpc::ServerBuilder builder;
  builder.RegisterService(service_.get());
  server_ = builder.BuildAndStart();
  if (server_ != nullptr && max_polling > 0) LetRest(max_polling);
}

void GrpcCallbackThreads::LetRest(int max_polling) {
  MutexLock lock(rest_mutex);
  while (NumCallbackThreads() - num_at_rest > max_polling) {
    resting_.push_back(std::make_unique<Resting>(*server_));
    ++num_at_rest;
  }
}

GrpcCallbackThreads::~GrpcCallbackThreads() {
  MutexLock lock(rest_mutex);
  num_at_rest -= num_resting();
  resting_.clear();
}

}  // namespace moebius
