// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/pem/key_pair.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>

#include "absl/strings/str_cat.h"

namespace moebius {
namespace {

struct OpenSslDeleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, OpenSslDeleter>;

Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

int NoPassphrase(char*, int, int, void*) { return 0; }

}  // namespace

absl::Status CheckKeyPair(const std::string& cert_file, const std::string& cert,
                          const std::string& key_file, const std::string& key) {
  const std::unique_ptr<X509, OpenSslDeleter> certificate(
      PEM_read_bio_X509(Open(cert).get(), nullptr, NoPassphrase, nullptr));
  const std::unique_ptr<EVP_PKEY, OpenSslDeleter> private_key(
      PEM_read_bio_PrivateKey(Open(key).get(), nullptr, NoPassphrase, nullptr));
  const bool is_pair = certificate != nullptr && private_key != nullptr &&
                       X509_check_private_key(certificate.get(), private_key.get()) == 1;
  ERR_clear_error();
  if (is_pair) return absl::OkStatus();
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(cert_file, ": no certificate in PEM form"));
  }
  if (private_key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(key_file, ": no private key in PEM form without a passphrase"));
  }
  return absl::InvalidArgumentError(absl::StrCat(key_file, ": it is not the key of ", cert_file));
}

}  // namespace moebius
