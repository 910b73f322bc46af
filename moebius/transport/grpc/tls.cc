// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/pem/key_pair.h"
#include "moebius/base/status.h"

namespace moebius {
namespace {

// No certificate chain is near this.
constexpr size_t kMaxPemBytes = 1 << 20;

struct OpenSslDeleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Bio = std::unique_ptr<BIO, OpenSslDeleter>;
using Certificate = std::unique_ptr<X509, OpenSslDeleter>;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  std::string text(kMaxPemBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (text.size() > kMaxPemBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": more than ", kMaxPemBytes, " bytes"));
  }
  return text;
}

Bio Open(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

absl::StatusOr<Certificate> FirstCertificate(const std::string& path, const std::string& pem) {
  Certificate certificate(PEM_read_bio_X509(Open(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no certificate in PEM form"));
  }
  return certificate;
}

absl::StatusOr<absl::Time> ExpiryOf(const std::string& path, const X509* certificate) {
  int days = 0;
  int seconds = 0;
  // From now.
  if (ASN1_TIME_diff(&days, &seconds, nullptr, X509_get0_notAfter(certificate)) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": its end of validity is no time"));
  }
  const absl::Duration left = absl::Hours(24) * days + absl::Seconds(seconds);
  if (left <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the certificate has expired"));
  }
  return absl::Now() + left;
}

// Lets in who has one of the allowed names. The chain has been verified before.
class PeerNameVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  explicit PeerNameVerifier(std::vector<std::string> allowed) : allowed_(std::move(allowed)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>, grpc::Status* status) override {
    std::string seen;
    for (const auto& names : {request->uri_names(), request->dns_names(), request->ip_names(),
                              request->email_names()}) {
      for (const grpc::string_ref& name : names) {
        const absl::string_view text(name.data(), name.size());
        for (const std::string& pattern : allowed_) {
          if (MatchesPeerName(pattern, text)) return true;
        }
        absl::StrAppend(&seen, seen.empty() ? "" : ", ", text.substr(0, 128));
      }
    }
    *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED,
                           absl::StrCat("the certificate's names (", seen.substr(0, 512),
                                        ") are not among the allowed peers"));
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::vector<std::string> allowed_;
};

std::shared_ptr<grpc::experimental::CertificateProviderInterface> ProviderOf(
    const TlsMaterial& material) {
  return std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
      material.ca,
      std::vector<grpc::experimental::IdentityKeyCertPair>{{material.key, material.cert}});
}

void Configure(const TlsOptions& options, grpc::experimental::TlsCredentialsOptions& credentials) {
  credentials.watch_root_certs();
  credentials.watch_identity_key_cert_pairs();
  if (options.allowed_peers.empty()) return;
  credentials.set_certificate_verifier(
      grpc::experimental::ExternalCertificateVerifier::Create<PeerNameVerifier>(
          options.allowed_peers));
  credentials.set_check_call_host(false);
}

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(
    const TlsOptions& options,
    std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider) {
  grpc::experimental::TlsServerCredentialsOptions credentials(std::move(provider));
  credentials.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  Configure(options, credentials);
  return grpc::experimental::TlsServerCredentials(credentials);
}

// gRPC takes what it reads, also between the two halves of a rotation, until its next look.
constexpr unsigned kWatchSeconds = 1;

}  // namespace

bool MatchesPeerName(absl::string_view pattern, absl::string_view name) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return pattern == name;
  return name.size() + 1 >= pattern.size() && absl::StartsWith(name, pattern.substr(0, star)) &&
         absl::EndsWith(name, pattern.substr(star + 1));
}

absl::StatusOr<TlsMaterial> LoadTlsMaterial(const TlsOptions& options) {
  TlsMaterial material;
  MOEBIUS_ASSIGN_OR_RETURN(material.ca, ReadFile(options.ca_file));
  MOEBIUS_ASSIGN_OR_RETURN(material.cert, ReadFile(options.cert_file));
  MOEBIUS_ASSIGN_OR_RETURN(material.key, ReadFile(options.key_file));
  MOEBIUS_RETURN_IF_ERROR(FirstCertificate(options.ca_file, material.ca).status());
  MOEBIUS_ASSIGN_OR_RETURN(const Certificate certificate,
                           FirstCertificate(options.cert_file, material.cert));
  MOEBIUS_RETURN_IF_ERROR(
      CheckKeyPair(options.cert_file, material.cert, options.key_file, material.key));
  MOEBIUS_ASSIGN_OR_RETURN(material.expires, ExpiryOf(options.cert_file, certificate.get()));
  return material;
}

absl::StatusOr<std::unique_ptr<TlsFiles>> TlsFiles::Open(const TlsOptions& options,
                                                         const Clock& clock) {
  absl::StatusOr<TlsMaterial> material = ReadSettled([&] { return LoadTlsMaterial(options); });
  if (!material.ok()) {
    return WithHint(WithContext(material.status(), "TLS"),
                    "pass --tls-ca, --tls-cert and --tls-key with PEM files");
  }
  material->version = 1;
  std::unique_ptr<TlsFiles> files(new TlsFiles(options, clock));
  MutexLock lock(files->mutex_);
  files->current_ = std::make_shared<const TlsMaterial>(*std::move(material));
  files->next_look_ = clock.Now() + options.refresh_interval;
  return files;
}

std::shared_ptr<const TlsMaterial> TlsFiles::Current() {
  MutexLock lock(mutex_);
  const absl::Duration now = clock_.Now();
  if (now < next_look_) return current_;
  next_look_ = now + options_.refresh_interval;
  absl::StatusOr<TlsMaterial> material = LoadTlsMaterial(options_);
  last_failure_ = material.status();
  if (!material.ok()) {
    ++failed_reloads_;
    return current_;
  }
  if (material->ca == current_->ca && material->cert == current_->cert &&
      material->key == current_->key) {
    return current_;
  }
  material->version = current_->version + 1;
  current_ = std::make_shared<const TlsMaterial>(*std::move(material));
  ++reloads_;
  return current_;
}

uint64_t TlsFiles::reloads() const {
  MutexLock lock(mutex_);
  return reloads_;
}

uint64_t TlsFiles::failed_reloads() const {
  MutexLock lock(mutex_);
  return failed_reloads_;
}

absl::Status TlsFiles::last_failure() const {
  MutexLock lock(mutex_);
  return last_failure_;
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsOptions& options,
                                                                 const TlsMaterial& material) {
  grpc::experimental::TlsChannelCredentialsOptions credentials;
  credentials.set_certificate_provider(ProviderOf(material));
  Configure(options, credentials);
  return grpc::experimental::TlsCredentials(credentials);
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsOptions& options,
                                                               const TlsMaterial& material) {
  return ServerCredentialsOf(options, ProviderOf(material));
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeWatchingServerCredentials(
    const TlsOptions& options) {
  MOEBIUS_RETURN_IF_ERROR(ReadSettled([&] { return LoadTlsMaterial(options); }).status());
  return ServerCredentialsOf(
      options, std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
                   options.key_file, options.cert_file, options.ca_file, kWatchSeconds));
}

}  // namespace moebius
