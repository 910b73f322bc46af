// SPDX-License-Identifier: Apache-2.0
#include "node/certificates.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/transport/grpc/tls.h"
#include "node/x509.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const absl::Time kNow = absl::FromUnixSeconds(1'900'000'000);

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

SignedKey Read(const std::string& cert, const std::string& key) {
  auto parsed = ParseSignedKey(ReadAll(cert), ReadAll(key));
  EXPECT_TRUE(parsed.ok()) << cert << ": " << parsed.status();
  return *std::move(parsed);
}

// What OpenSSL says of `leaf` at `time` to one who trusts `authority` alone.
int Verify(X509* leaf, X509* authority, absl::Time time, int purpose) {
  X509_STORE* store = X509_STORE_new();
  X509_STORE_add_cert(store, authority);
  X509_STORE_CTX* context = X509_STORE_CTX_new();
  X509_STORE_CTX_init(context, store, leaf, nullptr);
  X509_STORE_CTX_set_time(context, 0, absl::ToTimeT(time));
  X509_STORE_CTX_set_flags(context, X509_V_FLAG_X509_STRICT);
  X509_STORE_CTX_set_purpose(context, purpose);
  X509_verify_cert(context);
  const int error = X509_STORE_CTX_get_error(context);
  X509_STORE_CTX_free(context);
  X509_STORE_free(store);
  return error;
}

class CertificatesTest : public ::testing::Test {
 protected:
  CertificateOptions Options() const {
    CertificateOptions options;
    options.dir = folder_.File("certs");
    options.hosts = {"node-7.example", "10.0.0.7", "*.moebius.svc"};
    options.days = 30;
    options.now = kNow;
    return options;
  }
  CertificateFolder Make(const CertificateOptions& options) const {
    auto made = MakeCertificates(options);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }

  TemporaryFolder folder_;
};

TEST_F(CertificatesTest, EveryRolesCertificateIsTheAuthoritys) {
  const CertificateFolder made = Make(Options());
  const SignedKey authority = Read(made.ca_cert, made.ca_key);
  for (const CertificateFiles& role : made.roles) {
    const SignedKey leaf = Read(role.cert, role.key);
    EXPECT_EQ(Verify(leaf.cert.get(), authority.cert.get(), kNow, X509_PURPOSE_SSL_CLIENT),
              X509_V_OK)
        << role.role;
    EXPECT_EQ(Verify(leaf.cert.get(), authority.cert.get(), kNow, X509_PURPOSE_SSL_SERVER),
              role.role == "client" ? X509_V_ERR_INVALID_PURPOSE : X509_V_OK)
        << role.role;
    EXPECT_EQ(EVP_PKEY_get_bits(leaf.key.get()), 256);
  }
}

TEST_F(CertificatesTest, NamesAreTheHostsAndTheRole) {
  const CertificateFolder made = Make(Options());
  for (const CertificateFiles& role : made.roles) {
    const auto facts = ReadCertificate(role.cert);
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_THAT(facts->names,
                ElementsAre("URI:spiffe://moebius/" + role.role, "DNS:localhost", "IP:127.0.0.1",
                            "IP:::1", "DNS:node-7.example", "IP:10.0.0.7", "DNS:*.moebius.svc"));
    EXPECT_THAT(facts->subject, HasSubstr(role.role));
    EXPECT_FALSE(facts->is_authority);
    EXPECT_EQ(facts->not_after, kNow + absl::Hours(24 * 30));
    EXPECT_LT(facts->not_before, kNow);
  }
  EXPECT_TRUE(ReadCertificate(made.ca_cert)->is_authority);
}

TEST_F(CertificatesTest, ValidityEndsWithTheDays) {
  const CertificateFolder made = Make(Options());
  const SignedKey authority = Read(made.ca_cert, made.ca_key);
  const SignedKey leaf = Read(made.Of("expert").cert, made.Of("expert").key);
  const auto at = [&](absl::Time time) {
    return Verify(leaf.cert.get(), authority.cert.get(), time, X509_PURPOSE_SSL_CLIENT);
  };
  EXPECT_EQ(at(kNow + absl::Hours(24 * 30) - absl::Minutes(1)), X509_V_OK);
  EXPECT_EQ(at(kNow + absl::Hours(24 * 30) + absl::Minutes(1)), X509_V_ERR_CERT_HAS_EXPIRED);
  EXPECT_EQ(at(kNow - absl::Hours(1)), X509_V_ERR_CERT_NOT_YET_VALID);
}

TEST_F(CertificatesTest, AnotherAuthoritysCertificateIsNotVerified) {
  const CertificateFolder made = Make(Options());
  CertificateOptions options = Options();
  options.dir = folder_.File("other");
  const CertificateFolder other = Make(options);
  const SignedKey authority = Read(made.ca_cert, made.ca_key);
  const SignedKey stranger = Read(other.Of("expert").cert, other.Of("expert").key);
  EXPECT_NE(Verify(stranger.cert.get(), authority.cert.get(), kNow, X509_PURPOSE_SSL_CLIENT),
            X509_V_OK);
  // A role's own certificate signs nothing either.
  const SignedKey router = Read(made.Of("router").cert, made.Of("router").key);
  const SignedKey expert = Read(made.Of("expert").cert, made.Of("expert").key);
  EXPECT_NE(Verify(expert.cert.get(), router.cert.get(), kNow, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
}

TEST_F(CertificatesTest, OnlyTheOwnerReadsKeys) {
  const CertificateFolder made = Make(Options());
  const auto mode = [](const std::string& path) {
    struct stat facts = {};
    EXPECT_EQ(stat(path.c_str(), &facts), 0) << path;
    return facts.st_mode & 0777;
  };
  EXPECT_EQ(mode(folder_.File("certs")), 0700u);
  EXPECT_EQ(mode(made.ca_key), 0600u);
  EXPECT_EQ(mode(made.ca_cert), 0644u);
  for (const CertificateFiles& role : made.roles) {
    EXPECT_EQ(mode(role.key), 0600u);
    EXPECT_EQ(mode(role.cert), 0644u);
  }
}

TEST_F(CertificatesTest, WhatIsThereIsReplacedOnlyWhenAsked) {
  CertificateOptions options = Options();
  const CertificateFolder made = Make(options);
  const std::string ca = ReadAll(made.ca_cert);
  const std::string key = ReadAll(made.Of("router").key);
  ASSERT_EQ(remove(made.ca_cert.c_str()), 0);
  const absl::Status refused = MakeCertificates(options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(made.ca_key));
  EXPECT_THAT(HintOf(refused), HasSubstr("--force"));
  EXPECT_EQ(ReadAll(made.Of("router").key), key);
  EXPECT_EQ(ReadAll(made.ca_cert), "");  // nothing was written
  options.existing = ExistingFiles::kReplace;
  Make(options);
  EXPECT_NE(ReadAll(made.ca_cert), ca);
  EXPECT_NE(ReadAll(made.Of("router").key), key);
}

TEST_F(CertificatesTest, AKeptAuthorityVerifiesOldAndNew) {
  CertificateOptions options = Options();
  const CertificateFolder made = Make(options);
  const std::string ca = ReadAll(made.ca_cert);
  const SignedKey before = Read(made.Of("expert").cert, made.Of("expert").key);
  options.existing = ExistingFiles::kKeepAuthority;
  options.hosts = {"node-8.example"};
  Make(options);
  EXPECT_EQ(ReadAll(made.ca_cert), ca);
  const SignedKey authority = Read(made.ca_cert, made.ca_key);
  const SignedKey after = Read(made.Of("expert").cert, made.Of("expert").key);
  for (const SignedKey* leaf : {&before, &after}) {
    EXPECT_EQ(Verify(leaf->cert.get(), authority.cert.get(), kNow, X509_PURPOSE_SSL_SERVER),
              X509_V_OK);
  }
  EXPECT_THAT(ReadCertificate(made.Of("expert").cert)->names,
              ::testing::Contains("DNS:node-8.example"));
  options.days = kMaxCertificateDays;
  options.now = kNow + absl::Hours(24);
  EXPECT_THAT(std::string(MakeCertificates(options).status().message()), HasSubstr("ends 20"));
}

TEST_F(CertificatesTest, AnAuthorityToKeepMustBeThereAndBeOne) {
  CertificateOptions options = Options();
  options.existing = ExistingFiles::kKeepAuthority;
  EXPECT_EQ(MakeCertificates(options).status().code(), absl::StatusCode::kNotFound);
  options.existing = ExistingFiles::kRefuse;
  const CertificateFolder made = Make(options);
  options.existing = ExistingFiles::kKeepAuthority;
  std::ofstream(made.ca_key) << ReadAll(made.Of("router").key);
  EXPECT_EQ(MakeCertificates(options).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(made.ca_cert) << ReadAll(made.Of("router").cert);
  EXPECT_THAT(std::string(MakeCertificates(options).status().message()), HasSubstr("no authority"));
}

TEST_F(CertificatesTest, HostsAreNamesOrAddresses) {
  for (const char* host : {"", "a b", "node:7410", "[::1]", "*", "a.*.b", "-a", "a-", "a..b",
                           "10.0.0", "x,DNS:evil", "@section", "http://a", "a\nb"}) {
    CertificateOptions options = Options();
    options.hosts = {host};
    const absl::Status status = MakeCertificates(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << host;
    EXPECT_THAT(HintOf(status), HasSubstr("without a port")) << host;
  }
  CertificateOptions options = Options();
  options.hosts.assign(kMaxCertificateHosts + 1, "a");
  EXPECT_THAT(std::string(MakeCertificates(options).status().message()), HasSubstr("at most 64"));
  options.hosts = {std::string(254, 'a')};
  EXPECT_FALSE(MakeCertificates(options).ok());
  options = Options();
  options.days = 0;
  EXPECT_THAT(std::string(MakeCertificates(options).status().message()), HasSubstr("--days is 0"));
  struct stat facts = {};
  EXPECT_NE(stat(Options().dir.c_str(), &facts), 0) << "nothing is made before all is checked";
}

TEST_F(CertificatesTest, AFolderThatCannotBeWrittenIsNamed) {
  CertificateOptions options = Options();
  options.dir = "/nowhere/certs";
  EXPECT_THAT(std::string(MakeCertificates(options).status().message()),
              HasSubstr("/nowhere/certs"));
  options.dir = folder_.File("file");
  std::ofstream(options.dir) << "x";
  EXPECT_THAT(std::string(MakeCertificates(options).status().message()), HasSubstr("no folder"));
}

TEST_F(CertificatesTest, ALinkInTheWayIsNotFollowed) {
  CertificateOptions options = Options();
  ASSERT_EQ(mkdir(options.dir.c_str(), 0700), 0);
  const CertificateFolder in = CertificateFolder::In(options.dir);
  ASSERT_EQ(symlink(folder_.File("elsewhere").c_str(), in.ca_key.c_str()), 0);
  EXPECT_EQ(MakeCertificates(options).status().code(), absl::StatusCode::kAlreadyExists);
  ASSERT_EQ(symlink(folder_.File("elsewhere").c_str(), (in.ca_cert + ".new").c_str()), 0);
  options.existing = ExistingFiles::kReplace;
  Make(options);
  struct stat facts = {};
  EXPECT_NE(stat(folder_.File("elsewhere").c_str(), &facts), 0);
}

TEST_F(CertificatesTest, WhatIsNoCertificateIsNamed) {
  EXPECT_EQ(ReadCertificate("/nowhere.pem").status().code(), absl::StatusCode::kNotFound);
  const std::string path = folder_.File("x.pem");
  std::ofstream(path) << "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
  const absl::Status status = ReadCertificate(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

TEST_F(CertificatesTest, TheTransportTakesThem) {
  CertificateOptions options = Options();
  options.now = absl::Now();
  const CertificateFolder made = Make(options);
  for (const CertificateFiles& role : made.roles) {
    TlsOptions tls;
    tls.ca_file = made.ca_cert;
    tls.cert_file = role.cert;
    tls.key_file = role.key;
    EXPECT_TRUE(LoadTlsMaterial(tls).ok()) << role.role;
  }
}

}  // namespace
}  // namespace moebius
