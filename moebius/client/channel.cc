// SPDX-License-Identifier: Apache-2.0
#include "moebius/client/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/error.h"
#include "moebius/base/pem/key_pair.h"
#include "moebius/base/status.h"
#include "moebius/wire/grpc/grpc_status.h"

namespace moebius {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;
constexpr int kPingMilliseconds = 30'000;
// An error's message and detail are metadata: gRPC's own limit of 8 KiB loses the longest.
constexpr int kMaxMetadataBytes = 32 << 10;

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  std::string text(1 << 20, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (text.find("-----BEGIN ") == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no PEM file"));
  }
  return text;
}

// Of ClientTls's files; empty where there is none.
struct Pems {
  std::string ca;
  std::string cert;
  std::string key;
};

absl::StatusOr<Pems> ReadPems(const ClientTls& tls) {
  Pems pems;
  for (const auto& [path, text] : {std::pair(&tls.ca_file, &pems.ca),
                                   {&tls.cert_file, &pems.cert},
                                   {&tls.key_file, &pems.key}}) {
    if (path->empty()) continue;
    MOEBIUS_ASSIGN_OR_RETURN(*text, ReadPem(*path));
  }
  if (tls.cert_file.empty()) return pems;
  const absl::Status pair = CheckKeyPair(tls.cert_file, pems.cert, tls.key_file, pems.key);
  if (pair.ok()) return pems;
  return WithHint(pair, "--tls-cert and --tls-key are the two files of one role");
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const std::optional<ClientTls>& tls) {
  if (!tls.has_value()) return grpc::InsecureChannelCredentials();
  if (tls->cert_file.empty() != tls->key_file.empty()) {
    return absl::InvalidArgumentError("a certificate and its key are given together or not at all");
  }
  MOEBIUS_ASSIGN_OR_RETURN(const Pems pems, ReadSettled([&] { return ReadPems(*tls); }));
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = pems.ca;
  ssl.pem_cert_chain = pems.cert;
  ssl.pem_private_key = pems.key;
  return grpc::SslCredentials(ssl);
}

grpc::ChannelArguments MakeArguments(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMilliseconds);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Clients share nothing: one that ends takes no connection from another.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (options.tls.has_value() && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  return arguments;
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ClientOptions& options) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                           MakeCredentials(options.tls));
  return grpc::CreateCustomChannel(options.target, credentials, MakeArguments(options));
}

void SetApiKey(grpc::ClientContext* context, const std::string& key) {
  if (!key.empty()) context->AddMetadata("authorization", "Bearer " + key);
}

absl::Status ValidateApiKey(absl::string_view key) {
  const bool is_header = std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c));
  });
  if (is_header) return absl::OkStatus();
  return WithHint(
      absl::InvalidArgumentError(
          "the API key has a space, a line end or another byte that no key has"),
      "MOEBIUS_API_KEY or --api-key-file hold one key, as moebius keys add has shown it");
}

void SetTraceparent(grpc::ClientContext* context, const std::string& traceparent) {
  // gRPC ends the program over a value that is no header.
  const bool is_header = std::all_of(traceparent.begin(), traceparent.end(),
                                     [](char c) { return c > ' ' && c < 0x7F; });
  if (is_header && !traceparent.empty()) context->AddMetadata("traceparent", traceparent);
}

void SetDeadline(grpc::ClientContext* context, absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return;
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
}

absl::Status Unreachable(absl::string_view whom, absl::string_view reason) {
  return WithHint(
      absl::UnavailableError(absl::StrCat("cannot reach ", whom, ": ", reason)),
      "check the address and that the process runs; one with TLS lets in who shows a certificate "
      "that it knows: --tls-ca, --tls-cert and --tls-key");
}

absl::Status CallStatus(absl::string_view whom, const grpc::Status& status, CallProgress progress) {
  // Without details it is gRPC that failed, not the service.
  if (!status.error_details().empty()) return FromGrpcStatus(status);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return WithHint(
        absl::DeadlineExceededError(absl::StrCat("no word from ", whom, " before the deadline")),
        "allow more time, or look whether the process hangs: its log, moebius status");
  }
  if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return FromGrpcStatus(status);
  if (progress == CallProgress::kNothingHeard) return Unreachable(whom, status.error_message());
  return WithHint(absl::UnavailableError(absl::StrCat(
                      "lost ", whom, " in the middle of an answer: ", status.error_message())),
                  "what came is right and incomplete; ask again once the process is back: the same "
                  "seed gives the same answer");
}

}  // namespace moebius
