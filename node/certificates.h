// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace moebius {

/// Who shows a certificate: the three services, and whoever calls a router.
inline constexpr absl::string_view kCertificateRoles[] = {"router", "expert", "attention",
                                                          "client"};

enum class ExistingFiles {
  kRefuse,         // nothing is touched where one of the files is there
  kReplace,        // all files are made anew, the authority too
  kKeepAuthority,  // the authority is used again, its certificates are made anew
};

struct CertificateOptions {
  std::string dir;  // made when it is not there, mode 0700
  /// Names and IP addresses by which processes are dialed, beside localhost, 127.0.0.1 and ::1.
  std::vector<std::string> hosts;
  int64_t days = 365;  // of the roles' certificates; the authority's: at least ten years
  ExistingFiles existing = ExistingFiles::kRefuse;
  absl::Time now = absl::Now();
};

inline constexpr int64_t kMaxCertificateDays = 3650;
inline constexpr size_t kMaxCertificateHosts = 64;

/// A certificate and its key.
struct CertificateFiles {
  std::string role;
  std::string cert;
  std::string key;
};

/// What MakeCertificates leaves in a folder.
struct CertificateFolder {
  std::string ca_cert;                  // all processes have it
  std::string ca_key;                   // signs; no process needs it
  std::vector<CertificateFiles> roles;  // in the order of kCertificateRoles

  /// The names of the files in `dir`, there or not. Pure.
  static CertificateFolder In(const std::string& dir);
  /// Of one of kCertificateRoles.
  const CertificateFiles& Of(absl::string_view role) const;
};

/// Makes an authority and a certificate of each role (EC P-256) as PEM files.
///
/// Invariants:
/// 1. A role's certificate has the names of all hosts and the URI spiffe://moebius/ROLE, by which
///    its peers know what it may be. Services' serve and call, a client's only calls.
/// 2. Files of keys have mode 0600, those of certificates 0644. Each appears whole, under its name,
///    or not at all, and replaces nothing unless `existing` says so.
///
/// INVALID_ARGUMENT for hosts, days or an authority that cannot be used; ALREADY_EXISTS naming a
/// file that is there; NOT_FOUND for an authority to keep that is not there; the operating system's
/// reason where the folder cannot be written.
absl::StatusOr<CertificateFolder> MakeCertificates(const CertificateOptions& options);

/// What a certificate says.
struct CertificateFacts {
  std::string subject, issuer;
  std::vector<std::string> names;  // "DNS:localhost", "IP:127.0.0.1", "URI:spiffe://moebius/router"
  absl::Time not_before, not_after;
  bool is_authority = false;
};

/// The first certificate of a PEM file. NOT_FOUND, or INVALID_ARGUMENT naming the file.
absl::StatusOr<CertificateFacts> ReadCertificate(const std::string& path);

}  // namespace moebius
