// SPDX-License-Identifier: Apache-2.0
#include "node/x509.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "moebius/base/status.h"

namespace moebius {
namespace {

constexpr absl::Duration kClockDifference = absl::Minutes(5);
constexpr int kSerialBits = 127;  // positive in DER
constexpr long kVersion3 = 2;

struct Deleter {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(BIGNUM* number) const { BN_free(number); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter>;

// OpenSSL's first reason; its queue is empty afterwards.
absl::Status OpenSslError(absl::string_view what) {
  char reason[256] = "no reason given";
  if (const unsigned long code = ERR_get_error(); code != 0) {
    ERR_error_string_n(code, reason, sizeof(reason));
  }
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL: ", what, ": ", reason));
}

Owned<BIO> Open(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, size > 0 ? static_cast<size_t>(size) : 0);
}

// A key that needs a passphrase is refused instead of asked for.
int NoPassphrase(char*, int, int, void*) { return 0; }

bool SetSerial(X509* cert) {
  const Owned<BIGNUM> number(BN_new());
  return number != nullptr &&
         BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(cert)) != nullptr;
}

bool AddNamePart(X509_NAME* name, const char* part, const std::string& text) {
  return X509_NAME_add_entry_by_txt(name, part, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()),
                                    static_cast<int>(text.size()), -1, 0) == 1;
}

struct Extension {
  int nid;
  std::string value;  // in OpenSSL's configuration language
};

bool AddExtensions(X509* cert, X509* issuer, const std::vector<Extension>& extensions) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  for (const Extension& extension : extensions) {
    const Owned<X509_EXTENSION> made(
        X509V3_EXT_conf_nid(nullptr, &context, extension.nid, extension.value.c_str()));
    if (made == nullptr || X509_add_ext(cert, made.get(), -1) != 1) return false;
  }
  return true;
}

// A certificate of a new key, signed by `authority` or, without one, by itself.
absl::StatusOr<SignedKey> Make(const std::string& subject, const Validity& validity,
                               const SignedKey* authority,
                               const std::vector<Extension>& extensions) {
  SignedKey made;
  made.key.reset(EVP_EC_gen("P-256"));
  made.cert.reset(X509_new());
  if (made.key == nullptr || made.cert == nullptr) return OpenSslError("a new key");
  X509* cert = made.cert.get();
  X509* issuer = authority == nullptr ? cert : authority->cert.get();
  EVP_PKEY* signer = authority == nullptr ? made.key.get() : authority->key.get();
  X509_NAME* name = X509_get_subject_name(cert);
  const bool is_filled =
      X509_set_version(cert, kVersion3) == 1 && SetSerial(cert) &&
      ASN1_TIME_set(X509_getm_notBefore(cert), absl::ToTimeT(validity.begin - kClockDifference)) !=
          nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(cert), absl::ToTimeT(validity.end)) != nullptr &&
      AddNamePart(name, "O", "moebius") && AddNamePart(name, "CN", subject) &&
      X509_set_issuer_name(cert, X509_get_subject_name(issuer)) == 1 &&
      X509_set_pubkey(cert, made.key.get()) == 1;
  if (!is_filled || !AddExtensions(cert, issuer, extensions)) return OpenSslError(subject);
  if (X509_sign(cert, signer, EVP_sha256()) == 0) return OpenSslError("a signature");
  return made;
}

std::string NamesOf(const LeafOptions& options) {
  std::vector<std::string> names = {absl::StrCat("URI:spiffe://moebius/", options.role)};
  for (const HostName& host : options.hosts) {
    names.push_back(absl::StrCat(host.kind == HostName::Kind::kIp ? "IP:" : "DNS:", host.text));
  }
  return absl::StrJoin(names, ",");
}

std::string NameText(const X509_NAME* name) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), name, 0, XN_FLAG_RFC2253);
  return TextOf(bio.get());
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm fields = {};
  if (ASN1_TIME_to_tm(time, &fields) != 1) return absl::InfinitePast();
  return absl::FromTM(fields, absl::UTCTimeZone());
}

std::string IpText(const ASN1_OCTET_STRING* address) {
  char text[INET6_ADDRSTRLEN] = "";
  const int family = address->length == 4 ? AF_INET : AF_INET6;
  if (address->length != 4 && address->length != 16) return "?";
  inet_ntop(family, address->data, text, sizeof(text));
  return text;
}

std::string Ia5Text(const ASN1_IA5STRING* text) {
  return std::string(reinterpret_cast<const char*>(text->data), static_cast<size_t>(text->length));
}

std::vector<std::string> AlternativeNames(const X509* cert) {
  std::vector<std::string> texts;
  const Owned<GENERAL_NAMES> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(cert, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    switch (name->type) {
      case GEN_DNS:
        texts.push_back(absl::StrCat("DNS:", Ia5Text(name->d.dNSName)));
        break;
      case GEN_URI:
        texts.push_back(absl::StrCat("URI:", Ia5Text(name->d.uniformResourceIdentifier)));
        break;
      case GEN_EMAIL:
        texts.push_back(absl::StrCat("email:", Ia5Text(name->d.rfc822Name)));
        break;
      case GEN_IPADD:
        texts.push_back(absl::StrCat("IP:", IpText(name->d.iPAddress)));
        break;
      default:
        texts.push_back("a name of another kind");
    }
  }
  return texts;
}

}  // namespace

absl::StatusOr<SignedKey> MakeAuthority(const Validity& validity) {
  return Make("moebius authority", validity, nullptr,
              {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
               {NID_key_usage, "critical,keyCertSign,cRLSign"},
               {NID_subject_key_identifier, "hash"}});
}

absl::StatusOr<SignedKey> MakeLeaf(const LeafOptions& options, const SignedKey& authority) {
  const bool serves = options.purpose == LeafPurpose::kServeAndCall;
  return Make(absl::StrCat("moebius ", options.role), options.validity, &authority,
              {{NID_basic_constraints, "critical,CA:FALSE"},
               {NID_key_usage, "critical,digitalSignature"},
               {NID_ext_key_usage, serves ? "serverAuth,clientAuth" : "clientAuth"},
               {NID_subject_key_identifier, "hash"},
               {NID_authority_key_identifier, "keyid:always"},
               {NID_subject_alt_name, NamesOf(options)}});
}

absl::StatusOr<PemPair> FormatSignedKey(const SignedKey& signed_key) {
  const Owned<BIO> cert(BIO_new(BIO_s_mem()));
  const Owned<BIO> key(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(cert.get(), signed_key.cert.get()) != 1 ||
      PEM_write_bio_PrivateKey(key.get(), signed_key.key.get(), nullptr, nullptr, 0, nullptr,
                               nullptr) != 1) {
    return OpenSslError("PEM");
  }
  return PemPair{TextOf(cert.get()), TextOf(key.get())};
}

absl::StatusOr<SignedKey> ParseSignedKey(const std::string& cert, const std::string& key) {
  SignedKey parsed;
  parsed.cert.reset(PEM_read_bio_X509(Open(cert).get(), nullptr, NoPassphrase, nullptr));
  parsed.key.reset(PEM_read_bio_PrivateKey(Open(key).get(), nullptr, NoPassphrase, nullptr));
  const bool is_pair = parsed.cert != nullptr && parsed.key != nullptr &&
                       X509_check_private_key(parsed.cert.get(), parsed.key.get()) == 1;
  ERR_clear_error();
  if (!is_pair) {
    return absl::InvalidArgumentError(
        "no certificate and the key of it, in PEM form without a passphrase");
  }
  return parsed;
}

absl::StatusOr<CertificateFacts> DescribeCertificate(const std::string& pem) {
  const std::unique_ptr<X509, X509Deleter> cert(
      PEM_read_bio_X509(Open(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (cert == nullptr) return absl::InvalidArgumentError("no certificate in PEM form");
  CertificateFacts facts;
  facts.subject = NameText(X509_get_subject_name(cert.get()));
  facts.issuer = NameText(X509_get_issuer_name(cert.get()));
  facts.names = AlternativeNames(cert.get());
  facts.not_before = TimeOf(X509_get0_notBefore(cert.get()));
  facts.not_after = TimeOf(X509_get0_notAfter(cert.get()));
  facts.is_authority = X509_check_ca(cert.get()) == 1;
  return facts;
}

}  // namespace moebius
