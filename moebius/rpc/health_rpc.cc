// SPDX-License-Identifier: Apache-2.0
#include "moebius/rpc/health_rpc.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/rpc/unary_call.h"
#include "moebius/wire/grpc/grpc_status.h"

namespace moebius {
namespace {

namespace pb = ::grpc::health::v1;

pb::HealthCheckResponse::ServingStatus StatusOf(const std::optional<bool>& serving) {
  if (!serving.has_value()) return pb::HealthCheckResponse::SERVICE_UNKNOWN;
  return *serving ? pb::HealthCheckResponse::SERVING : pb::HealthCheckResponse::NOT_SERVING;
}

// Ends a call before it begins.
class RefusedWatch final : public grpc::ServerWriteReactor<pb::HealthCheckResponse> {
 public:
  explicit RefusedWatch(const absl::Status& status) { Finish(ToGrpcStatus(status)); }
  void OnDone() override { delete this; }
};

}  // namespace

// Its state is guarded by the service's lock; gRPC calls OnDone after everything else.
class HealthRpc::Watcher final : public grpc::ServerWriteReactor<pb::HealthCheckResponse> {
 public:
  Watcher(HealthRpc& service, std::string name) : service_(service), name_(std::move(name)) {}

  /// Tells the state where it is new and nothing is on its way.
  void Poke() {
    if (is_writing_ || is_finished_) return;
    const auto status = StatusOf(service_.source_(name_));
    if (told_ && status == response_.status()) return;
    told_ = true;
    response_.set_status(status);
    is_writing_ = true;
    StartWrite(&response_);
  }
  void End() {
    end_asked_ = true;
    if (!is_writing_ && !std::exchange(is_finished_, true)) {
      Finish(ToGrpcStatus(absl::UnavailableError("the process is about to end")));
    }
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(service_.mutex_);
    is_writing_ = false;
    if (end_asked_ || !ok) return End();
    Poke();
  }
  void OnCancel() override {
    MutexLock lock(service_.mutex_);
    End();
  }
  void OnDone() override { service_.Remove(this); }

 private:
  HealthRpc& service_;
  const std::string name_;
  pb::HealthCheckResponse response_;
  bool told_ = false;
  bool is_writing_ = false;
  bool is_finished_ = false;
  bool end_asked_ = false;
};

HealthRpc::HealthRpc(HealthSource source) : source_(std::move(source)) {
  thread_ = std::thread([this] { Tick(); });
}

HealthRpc::~HealthRpc() {
  EndWatches();
  thread_.join();
}

grpc::ServerUnaryReactor* HealthRpc::Check(grpc::CallbackServerContext* context,
                                           const pb::HealthCheckRequest* request,
                                           pb::HealthCheckResponse* response) {
  const std::optional<bool> serving = source_(request->service());
  if (!serving.has_value()) {
    return AnswerNow(context,
                     absl::NotFoundError(absl::StrCat(
                         "there is no health of '", request->service().substr(0, 64),
                         "'; there is that of readiness (also without a name), liveness and "
                         "startup")));
  }
  response->set_status(StatusOf(serving));
  return AnswerNow(context, absl::OkStatus());
}

grpc::ServerWriteReactor<pb::HealthCheckResponse>* HealthRpc::Watch(
    grpc::CallbackServerContext*, const pb::HealthCheckRequest* request) {
  MutexLock lock(mutex_);
  if (ended_) return new RefusedWatch(absl::UnavailableError("the process is about to end"));
  if (watchers_.size() >= kMaxWatchers) {
    return new RefusedWatch(absl::ResourceExhaustedError(
        absl::StrCat(kMaxWatchers, " watch already, which is the limit")));
  }
  watchers_.push_back(std::make_unique<Watcher>(*this, request->service()));
  changed_.Signal();
  watchers_.back()->Poke();
  return watchers_.back().get();
}

void HealthRpc::EndWatches() {
  MutexLock lock(mutex_);
  ended_ = true;
  for (const auto& watcher : watchers_) watcher->End();
  changed_.SignalAll();
}

void HealthRpc::Tick() {
  MutexLock lock(mutex_);
  while (!ended_) {
    if (watchers_.empty()) {
      changed_.Wait(mutex_);
      continue;
    }
    changed_.WaitWithTimeout(mutex_, kHealthTick);
    if (ended_) return;
    for (const auto& watcher : watchers_) watcher->Poke();
  }
}

void HealthRpc::Remove(Watcher* watcher) {
  MutexLock lock(mutex_);
  watchers_.remove_if([watcher](const auto& held) { return held.get() == watcher; });
}

}  // namespace moebius
