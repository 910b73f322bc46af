// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"
#include "moebius/telemetry/log_limit.h"
#include "moebius/telemetry/registry.h"
#include "router_service/client_list.h"

namespace moebius {

/// The place of one call among those of its client; given back when the object goes. What a call
/// uses is charged while it runs. Thread-safe.
class ClientPass {
 public:
  virtual ~ClientPass() = default;
  /// From 0 to 2^32; what is outside counts as the nearest of them.
  virtual void Charge(int64_t tokens) = 0;
  virtual const std::string& client() const = 0;
};

/// Who may call a router's public port, by the keys of a file, and how much of it at a time.
///
/// Limits: a client's calls in flight are never more than its max_in_flight. Its tokens are a
/// bucket that holds one minute's worth and fills evenly; a call is refused while the bucket is
/// empty, and one that was let in is never cut short, so that the bucket can go below zero by what
/// is running. A file that has changed is taken up as a whole, or not at all; clients keep their
/// buckets and their calls by name. Thread-safe.
class ClientGate {
 public:
  /// `on_notice` hears of each list that is taken up, and once of each that cannot be.
  ClientGate(std::string path, const Clock& clock,
             std::function<void(const std::string&)> on_notice);
  ~ClientGate();

  /// Hears, a sentence each, of calls without a key that is known; never of the key. Anybody can
  /// provoke them: whoever writes them bounds them by their source. Before the first call.
  void SetOnStranger(std::function<void(const LogSource&, const std::string&)> on_stranger) {
    on_stranger_ = std::move(on_stranger);
  }

  /// Takes the file up for the first time. Errors as ReadClientList.
  absl::Status Load();
  /// Looks whether the file has changed, by its content.
  void ReloadIfChanged();

  /// `authorization` is the call's metadata of that name: "Bearer KEY", empty where there is none;
  /// `peer` where it comes from, as gRPC says it.
  /// UNAUTHENTICATED without a key that is known; RESOURCE_EXHAUSTED, retryable, at a limit.
  absl::StatusOr<std::shared_ptr<ClientPass>> Enter(absl::string_view authorization,
                                                    absl::string_view peer = "");
  /// The same for a call that costs nothing and is not counted.
  absl::Status Check(absl::string_view authorization, absl::string_view peer = "") const;
  /// The same, and the client's name.
  absl::StatusOr<std::string> Identify(absl::string_view authorization,
                                       absl::string_view peer = "") const;

  void WriteMetrics(MetricWriter& writer) const;

 private:
  struct Client;
  class Pass;

  void TakeUp(const std::vector<ClientEntry>& entries) MOEBIUS_EXCLUDES(mutex_);
  absl::StatusOr<std::shared_ptr<Client>> Find(absl::string_view authorization,
                                               absl::string_view peer) const
      MOEBIUS_EXCLUDES(mutex_);

  const std::string path_;
  const Clock& clock_;
  const std::function<void(const std::string&)> on_notice_;
  std::function<void(const LogSource&, const std::string&)> on_stranger_;
  mutable std::atomic<int64_t> num_unauthenticated_{0};

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Client>> by_name_ MOEBIUS_GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<Client>> by_hash_ MOEBIUS_GUARDED_BY(mutex_);  // of a key
  uint64_t content_ MOEBIUS_GUARDED_BY(mutex_) = 0;  // hash of the list that was last looked at
  std::string failure_ MOEBIUS_GUARDED_BY(mutex_);   // the last one that was told
};

}  // namespace moebius
