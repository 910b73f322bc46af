// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "node/certificates.h"

// OpenSSL's part in making certificates; files and names are certificates.h's.

namespace moebius {

struct X509Deleter {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

/// A key and the certificate of its public half.
struct SignedKey {
  std::unique_ptr<X509, X509Deleter> cert;
  std::unique_ptr<EVP_PKEY, X509Deleter> key;
};

struct PemPair {
  std::string cert;
  std::string key;  // PKCS #8, without a passphrase
};

struct HostName {
  enum class Kind { kDns, kIp };
  Kind kind = Kind::kDns;
  std::string text;  // checked before
  friend bool operator==(const HostName&, const HostName&) = default;
};

struct Validity {
  absl::Time begin, end;
};

enum class LeafPurpose { kServeAndCall, kCall };

struct LeafOptions {
  std::string role;  // in its subject and its URI
  std::vector<HostName> hosts;
  Validity validity;
  LeafPurpose purpose = LeafPurpose::kServeAndCall;
};

/// A certificate that signs itself and may sign others, but no further authority. Each certificate
/// begins some minutes before its validity: clocks differ. INTERNAL with OpenSSL's reason, as all
/// here, where OpenSSL fails.
absl::StatusOr<SignedKey> MakeAuthority(const Validity& validity);
absl::StatusOr<SignedKey> MakeLeaf(const LeafOptions& options, const SignedKey& authority);

absl::StatusOr<PemPair> FormatSignedKey(const SignedKey& signed_key);
/// INVALID_ARGUMENT for what is no PEM, or a key that is not the certificate's.
absl::StatusOr<SignedKey> ParseSignedKey(const std::string& cert, const std::string& key);
/// Of the first certificate in a PEM text; INVALID_ARGUMENT where there is none.
absl::StatusOr<CertificateFacts> DescribeCertificate(const std::string& pem);

}  // namespace moebius
