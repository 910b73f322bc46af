// SPDX-License-Identifier: Apache-2.0
#include "router_service/client_gate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "moebius/base/error.h"
#include "moebius/base/hash.h"
#include "moebius/base/status.h"
#include "moebius/rpc/api_key.h"

namespace moebius {
namespace {

constexpr absl::string_view kScheme = "Bearer ";
// Above what any call may cost; sums of them stay far from 2^63.
constexpr int64_t kMaxCharge = int64_t{1} << 32;

uint64_t ContentOf(const std::vector<ClientEntry>& entries) {
  const std::string text = FormatClientList(entries);
  return Hash64(text.data(), text.size());
}

absl::Status Unauthenticated(absl::string_view what) {
  return WithHint(absl::UnauthenticatedError(what),
                  "send the key that the operator gave as metadata 'authorization: Bearer KEY'; "
                  "moebius takes it from MOEBIUS_API_KEY or --api-key-file");
}

}  // namespace

// What is known of one client for as long as the list names it.
struct ClientGate::Client {
  explicit Client(const ClientEntry& entry, absl::Duration now)
      : name(entry.name), entry_(entry), level_(Size()), filled_at_(now) {}

  const std::string name;

  void SetLimits(const ClientEntry& entry, absl::Duration now) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Fill(now);
    const bool had_limit = entry_.tokens_per_minute > 0;
    entry_ = entry;
    level_ = had_limit ? std::min(level_, Size()) : Size();
  }

  absl::Status Enter(absl::Duration now) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (entry_.max_in_flight > 0 && in_flight_ >= entry_.max_in_flight) {
      ++refused_in_flight_;
      return WithHint(
          absl::ResourceExhaustedError(absl::StrCat("client ", name, " has ", in_flight_,
                                                    " calls in flight, which is its limit")),
          "wait until one has ended");
    }
    Fill(now);
    if (entry_.tokens_per_minute > 0 && level_ <= 0) {
      ++refused_tokens_;
      const double seconds = (1 - level_) * 60 / Size();
      return WithHint(
          absl::ResourceExhaustedError(absl::StrCat("client ", name, " has used its ",
                                                    entry_.tokens_per_minute, " tokens a minute")),
          absl::StrCat("try again in ", static_cast<int64_t>(std::ceil(seconds)), " s"));
    }
    ++in_flight_;
    ++admitted_;
    return absl::OkStatus();
  }

  void Leave() MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    --in_flight_;
  }

  void Charge(int64_t tokens) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    tokens = std::clamp<int64_t>(tokens, 0, kMaxCharge);
    level_ -= static_cast<double>(tokens);
    tokens_ += tokens;
  }

  void WriteMetrics(MetricWriter& writer) MOEBIUS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    writer.WriteGauge(Metric::kClientRequestsInFlight, static_cast<double>(in_flight_), {name});
    writer.WriteCounter(Metric::kClientRequests, static_cast<double>(admitted_), {name});
    writer.WriteCounter(Metric::kClientRequestsRefused, static_cast<double>(refused_in_flight_),
                        {name, "in_flight"});
    writer.WriteCounter(Metric::kClientRequestsRefused, static_cast<double>(refused_tokens_),
                        {name, "tokens"});
    writer.WriteCounter(Metric::kClientTokens, static_cast<double>(tokens_), {name});
  }

 private:
  double Size() const MOEBIUS_REQUIRES(mutex_) {
    return static_cast<double>(entry_.tokens_per_minute);
  }
  void Fill(absl::Duration now) MOEBIUS_REQUIRES(mutex_) {
    level_ = std::min(Size(), level_ + Size() / 60 * absl::ToDoubleSeconds(now - filled_at_));
    filled_at_ = now;
  }

  Mutex mutex_;
  ClientEntry entry_ MOEBIUS_GUARDED_BY(mutex_);
  double level_ MOEBIUS_GUARDED_BY(mutex_);  // of the bucket, in tokens
  absl::Duration filled_at_ MOEBIUS_GUARDED_BY(mutex_);
  int64_t in_flight_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  int64_t admitted_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  int64_t refused_in_flight_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  int64_t refused_tokens_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  int64_t tokens_ MOEBIUS_GUARDED_BY(mutex_) = 0;
};

class ClientGate::Pass final : public ClientPass {
 public:
  explicit Pass(std::shared_ptr<Client> client) : client_(std::move(client)) {}
  ~Pass() override { client_->Leave(); }
  void Charge(int64_t tokens) override { client_->Charge(tokens); }
  const std::string& client() const override { return client_->name; }

 private:
  const std::shared_ptr<Client> client_;
};

ClientGate::ClientGate(std::string path, const Clock& clock,
                       std::function<void(const std::string&)> on_notice)
    : path_(std::move(path)), clock_(clock), on_notice_(std::move(on_notice)) {}
ClientGate::~ClientGate() = default;

absl::Status ClientGate::Load() {
  MOEBIUS_ASSIGN_OR_RETURN(const std::vector<ClientEntry> entries, ReadClientList(path_));
  TakeUp(entries);
  return absl::OkStatus();
}

void ClientGate::ReloadIfChanged() {
  const absl::StatusOr<std::vector<ClientEntry>> entries = ReadClientList(path_);
  if (entries.ok()) {
    {
      MutexLock lock(mutex_);
      failure_.clear();
      if (ContentOf(*entries) == content_) return;
    }
    TakeUp(*entries);
    return;
  }
  const std::string failure(entries.status().message());
  {
    MutexLock lock(mutex_);
    if (std::exchange(failure_, failure) == failure) return;
  }
  on_notice_(absl::StrCat("the list of clients stays as it was: ", failure));
}

void ClientGate::TakeUp(const std::vector<ClientEntry>& entries) {
  const absl::Duration now = clock_.Now();
  {
    MutexLock lock(mutex_);
    std::map<std::string, std::shared_ptr<Client>> known = std::exchange(by_name_, {});
    by_hash_.clear();
    for (const ClientEntry& entry : entries) {
      std::shared_ptr<Client> client = known[entry.name];
      if (client == nullptr) {
        client = std::make_shared<Client>(entry, now);
      } else {
        client->SetLimits(entry, now);
      }
      for (const std::string& hash : entry.key_hashes) by_hash_[hash] = client;
      by_name_[entry.name] = std::move(client);
    }
    content_ = ContentOf(entries);
  }
  on_notice_(absl::StrCat(path_, ": ", entries.size(), " clients may call"));
}

absl::StatusOr<std::shared_ptr<ClientGate::Client>> ClientGate::Find(
    absl::string_view authorization, absl::string_view peer) const {
  absl::string_view key = authorization;
  absl::Status refusal;
  if (key.empty()) {
    refusal = Unauthenticated("this router wants a key, the call has none");
  } else if (!absl::StartsWithIgnoreCase(key, kScheme)) {
    refusal = Unauthenticated("the call's authorization is not of the form 'Bearer KEY'");
  } else {
    key.remove_prefix(kScheme.size());
    if (key.size() <= kMaxKeyBytes) {
      const std::string hash = HashKey(key);
      MutexLock lock(mutex_);
      const auto found = by_hash_.find(hash);
      if (found != by_hash_.end()) return found->second;
    }
    refusal = Unauthenticated("the call's key is not known here");
  }
  num_unauthenticated_.fetch_add(1, std::memory_order_relaxed);
  if (on_stranger_) {
    const std::string host(PeerOfAddress(peer));
    on_stranger_({host, "stranger"}, absl::StrCat("refused a call of ", host.empty() ? "?" : host,
                                                  ": ", refusal.message()));
  }
  return refusal;
}

absl::StatusOr<std::shared_ptr<ClientPass>> ClientGate::Enter(absl::string_view authorization,
                                                              absl::string_view peer) {
  MOEBIUS_ASSIGN_OR_RETURN(std::shared_ptr<Client> client, Find(authorization, peer));
  MOEBIUS_RETURN_IF_ERROR(client->Enter(clock_.Now()));
  return std::make_shared<Pass>(std::move(client));
}

absl::Status ClientGate::Check(absl::string_view authorization, absl::string_view peer) const {
  return Find(authorization, peer).status();
}

absl::StatusOr<std::string> ClientGate::Identify(absl::string_view authorization,
                                                 absl::string_view peer) const {
  MOEBIUS_ASSIGN_OR_RETURN(const std::shared_ptr<Client> client, Find(authorization, peer));
  return client->name;
}

void ClientGate::WriteMetrics(MetricWriter& writer) const {
  writer.WriteCounter(Metric::kUnauthenticatedRequests,
                      static_cast<double>(num_unauthenticated_.load(std::memory_order_relaxed)));
  std::vector<std::shared_ptr<Client>> clients;
  {
    MutexLock lock(mutex_);
    for (const auto& [name, client] : by_name_) clients.push_back(client);
  }
  for (const std::shared_ptr<Client>& client : clients) client->WriteMetrics(writer);
}

}  // namespace moebius
