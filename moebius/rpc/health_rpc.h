// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "moebius/base/mutex.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"

namespace moebius {

/// Whether the process is well by that name ("", "liveness", "readiness", "startup"); nothing for a
/// name that there is not. Asked on gRPC's threads: it neither computes nor waits.
using HealthSource = std::function<std::optional<bool>(const std::string& name)>;

/// grpc.health.v1.Health over a source. The answer is the source's at that moment; watchers hear of
/// a change within kHealthTick. Thread-safe; outlives the server that it is registered with.
class HealthRpc final : public grpc::health::v1::Health::CallbackService {
 public:
  static constexpr absl::Duration kHealthTick = absl::Milliseconds(100);
  static constexpr size_t kMaxWatchers = 256;

  explicit HealthRpc(HealthSource source);
  ~HealthRpc() override;

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::health::v1::HealthCheckRequest* request,
                                  grpc::health::v1::HealthCheckResponse* response) override;
  grpc::ServerWriteReactor<grpc::health::v1::HealthCheckResponse>* Watch(
      grpc::CallbackServerContext* context,
      const grpc::health::v1::HealthCheckRequest* request) override;

  /// Ends every Watch, now and from now on: before the server waits for its calls.
  void EndWatches() MOEBIUS_EXCLUDES(mutex_);

 private:
  class Watcher;
  void Tick();
  void Remove(Watcher* watcher) MOEBIUS_EXCLUDES(mutex_);

  const HealthSource source_;
  Mutex mutex_;
  CondVar changed_;
  std::list<std::unique_ptr<Watcher>> watchers_ MOEBIUS_GUARDED_BY(mutex_);
  bool ended_ MOEBIUS_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace moebius
