// SPDX-License-Identifier: Apache-2.0
#include "moebius/base/pem/key_pair.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

struct OpenSslDeleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, OpenSslDeleter>;

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const int64_t size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

// A key, a certificate of it, and the key under a passphrase.
struct Pair {
  Pair() {
    const std::unique_ptr<EVP_PKEY, OpenSslDeleter> made(EVP_EC_gen("P-256"));
    const std::unique_ptr<X509, OpenSslDeleter> certificate(X509_new());
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 60);
    X509_set_pubkey(certificate.get(), made.get());
    EXPECT_GT(X509_sign(certificate.get(), made.get(), EVP_sha256()), 0);
    const Bio cert_out(BIO_new(BIO_s_mem()));
    const Bio key_out(BIO_new(BIO_s_mem()));
    const Bio locked_out(BIO_new(BIO_s_mem()));
    EXPECT_EQ(PEM_write_bio_X509(cert_out.get(), certificate.get()), 1);
    EXPECT_EQ(PEM_write_bio_PKCS8PrivateKey(key_out.get(), made.get(), nullptr, nullptr, 0, nullptr,
                                            nullptr),
              1);
    char passphrase[] = "secret";
    EXPECT_EQ(PEM_write_bio_PKCS8PrivateKey(locked_out.get(), made.get(), EVP_aes_256_cbc(),
                                            passphrase, 6, nullptr, nullptr),
              1);
    cert = TextOf(cert_out.get());
    key = TextOf(key_out.get());
    locked_key = TextOf(locked_out.get());
  }
  std::string cert, key, locked_key;
};

TEST(KeyPairTest, NamesTheFileThatIsWrong) {
  const Pair pair;
  const Pair other;
  EXPECT_TRUE(CheckKeyPair("a.crt", pair.cert, "a.key", pair.key).ok());
  // A chain: the first certificate is the one that the key belongs to.
  EXPECT_TRUE(CheckKeyPair("a.crt", pair.cert + other.cert, "a.key", pair.key).ok());
  const struct {
    std::string cert, key, message;
  } cases[] = {
      {other.cert, pair.key, "a.key: it is not the key of a.crt"},
      {other.cert + pair.cert, pair.key, "a.key: it is not the key of a.crt"},
      {pair.key, pair.key, "a.crt: no certificate"},
      {"", pair.key, "a.crt: no certificate"},
      {pair.cert.substr(0, pair.cert.size() / 2), pair.key, "a.crt: no certificate"},
      {pair.cert, pair.cert, "a.key: no private key"},
      {pair.cert, "", "a.key: no private key"},
      {pair.cert, pair.locked_key, "a.key: no private key in PEM form without a passphrase"},
  };
  for (const auto& each : cases) {
    const absl::Status status = CheckKeyPair("a.crt", each.cert, "a.key", each.key);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << each.message;
    EXPECT_THAT(status.message(), HasSubstr(each.message));
  }
}

TEST(ReadSettledTest, WaitsOnlyForWhatMayBeHalfARotation) {
  int reads = 0;
  const auto third_time_right = [&]() -> absl::StatusOr<int> {
    if (++reads < 3) return absl::InvalidArgumentError("half");
    return 7;
  };
  const absl::StatusOr<int> settled = ReadSettled(third_time_right);
  ASSERT_TRUE(settled.ok());
  EXPECT_EQ(*settled, 7);
  EXPECT_EQ(reads, 3);

  reads = 0;
  const auto never_right = [&]() -> absl::StatusOr<int> {
    ++reads;
    return absl::InvalidArgumentError("half");
  };
  EXPECT_TRUE(absl::IsInvalidArgument(ReadSettled(never_right).status()));
  EXPECT_EQ(reads, 10);

  reads = 0;
  const auto no_file = [&]() -> absl::StatusOr<int> {
    ++reads;
    return absl::NotFoundError("no such file");
  };
  EXPECT_TRUE(absl::IsNotFound(ReadSettled(no_file).status()));
  EXPECT_EQ(reads, 1);
}

}  // namespace
}  // namespace moebius
