// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "moebius/base/clock.h"
#include "moebius/base/mutex.h"

namespace moebius {

/// Mutual TLS: both ends show a certificate of the same authority.
struct TlsOptions {
  std::string ca_file;    // PEM: who may sign
  std::string cert_file;  // PEM: this process's certificate, then its chain
  std::string key_file;   // PEM: its key, without a passphrase
  /// Names of peers that are let in, on both ends: alternative names (URI, DNS, IP, e-mail) of
  /// their certificates, where one '*' stands for any text ("spiffe://moebius/expert/*"). Empty: an
  /// accepted peer may have any name, a dialed one must have the name or address that was dialed.
  std::vector<std::string> allowed_peers;
  /// How often the files are looked at again.
  absl::Duration refresh_interval = absl::Seconds(10);
};

/// True when `name` is `pattern`, whose first '*' stands for any text.
bool MatchesPeerName(absl::string_view pattern, absl::string_view name);

/// What the files held at one time: usable together, checked.
struct TlsMaterial {
  std::string ca;
  std::string cert;
  std::string key;
  absl::Time expires;    // of this process's certificate
  uint64_t version = 0;  // counts from 1
};

/// INVALID_ARGUMENT naming the file for what is no PEM, a key that is not the certificate's, or a
/// certificate that has expired; NOT_FOUND for a file that cannot be read.
absl::StatusOr<TlsMaterial> LoadTlsMaterial(const TlsOptions& options);

/// The current material: what is new and usable in the files replaces it, anything else leaves it
/// as it is and is counted. Links that are open keep the material with which they were opened.
///
/// Thread-safe.
class TlsFiles {
 public:
  /// `clock` outlives the object.
  static absl::StatusOr<std::unique_ptr<TlsFiles>> Open(const TlsOptions& options,
                                                        const Clock& clock);

  /// Looks at the files when the refresh interval has passed.
  std::shared_ptr<const TlsMaterial> Current() MOEBIUS_EXCLUDES(mutex_);

  uint64_t reloads() const MOEBIUS_EXCLUDES(mutex_);
  uint64_t failed_reloads() const MOEBIUS_EXCLUDES(mutex_);
  /// Why the files as they are now are not used; OK when they are.
  absl::Status last_failure() const MOEBIUS_EXCLUDES(mutex_);
  const TlsOptions& options() const { return options_; }

 private:
  TlsFiles(const TlsOptions& options, const Clock& clock) : options_(options), clock_(clock) {}

  const TlsOptions options_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::shared_ptr<const TlsMaterial> current_ MOEBIUS_GUARDED_BY(mutex_);
  absl::Duration next_look_ MOEBIUS_GUARDED_BY(mutex_);
  uint64_t reloads_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  uint64_t failed_reloads_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  absl::Status last_failure_ MOEBIUS_GUARDED_BY(mutex_);
};

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsOptions& options,
                                                                 const TlsMaterial& material);
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsOptions& options,
                                                               const TlsMaterial& material);

/// The same for a server that keeps its port: gRPC looks at the files itself, every second. Fails
/// like LoadTlsMaterial where they cannot be used at the start.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeWatchingServerCredentials(
    const TlsOptions& options);

}  // namespace moebius
