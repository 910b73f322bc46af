// SPDX-License-Identifier: Apache-2.0
#include "tests/support/expert_process.h"

#include <chrono>
#include <utility>

#include "gtest/gtest.h"

#include "moebius/base/check.h"

namespace moebius {

RunningReactor::RunningReactor()
    : thread_([this] {
        while (!stopping_) {
          if (reactor_.RunReady() == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
          ++rounds_;
        }
      }) {}

RunningReactor::~RunningReactor() {
  stopping_ = true;
  thread_.join();
  reactor_.RunReady();  // what is left owns links of its own
}

void RunningReactor::Advance(absl::Duration by) {
  for (const absl::Duration end = clock_.Now() + by; clock_.Now() < end;) {
    clock_.Advance(absl::Milliseconds(10));
    const uint64_t round = rounds_;
    while (rounds_ < round + 3) std::this_thread::yield();
  }
}

bool WaitFor(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

bool IsConnected(const Transport& transport, PeerId peer) {
  const auto info = transport.FindPeer(peer);
  return info.ok() && info->state == PeerState::kConnected;
}

TransportOptions SmallTransportOptions(const std::string& name) {
  TransportOptions options;
  options.name = name;
  options.limits.max_payload_bytes = 4096;
  options.limits.max_message_bytes = 1 << 20;
  options.limits.max_metadata_bytes = 64 << 10;
  options.limits.max_num_rows = 4096;
  options.limits.max_row_width = 4096;
  options.limits.max_layer = 60;
  options.limits.max_round = 15;
  return options;
}

ExpertProcess::ExpertProcess(const std::string& name, LinkProvider& provider, Reactor& reactor,
                             const Clock& clock, const DispatchServerOptions& options,
                             DispatchServer::Forward forward) {
  auto transport = Transport::Make(SmallTransportOptions(name), provider, reactor, *this);
  MOEBIUS_CHECK(transport.ok());
  transport_ = *std::move(transport);
  auto server =
      DispatchServer::Start(options, transport_.get(), &executor_, std::move(forward), clock);
  MOEBIUS_CHECK(server.ok());
  MutexLock lock(mutex_);
  server_ = *std::move(server);
}

void ExpertProcess::Kill() {
  // Never freed: the thread sanitizer does not see the reference counts of the prebuilt absl.
  static const auto* const killed = new absl::Status(absl::UnavailableError("killed"));
  for (const PeerInfo& peer : transport_->peers()) {
    transport_->Disconnect(peer.id, *killed);
  }
}

// The connections go first, as when a process is killed: nothing that is served then can leave.
ExpertProcess::~ExpertProcess() {
  Kill();
  std::unique_ptr<DispatchServer> server;
  {
    MutexLock lock(mutex_);
    server = std::move(server_);
  }
  server.reset();
  transport_.reset();
}

void ExpertProcess::Join(const Address& router) {
  const auto peer = transport_->Connect(router);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_TRUE(WaitFor([&] { return IsConnected(*transport_, *peer); }));
}

DispatchServer& ExpertProcess::server() {
  MutexLock lock(mutex_);
  return *server_;
}

void ExpertProcess::OnPeerState(const PeerInfo& peer) {
  MutexLock lock(mutex_);
  if (server_ != nullptr) server_->OnPeerState(peer);
}

}  // namespace moebius
