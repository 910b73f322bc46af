// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/channel_keeper.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace moebius {
namespace {

// How long one look at a channel waits for a change: what destruction may take.
constexpr std::chrono::milliseconds kLook(100);

}  // namespace

ChannelKeeper::~ChannelKeeper() {
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
  }
  queue_.Shutdown();
  if (thread_.joinable()) thread_.join();
  // Without a thread nothing was ever watched.
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) continue;
}

void ChannelKeeper::Keep(std::shared_ptr<grpc::Channel> channel) {
  if (channel == nullptr) return;
  Kept kept{std::move(channel), clock_.Now() + limit_};
  if (!IsConnecting(kept)) return;
  MutexLock lock(mutex_);
  if (is_closed_) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  kept_.push_back(std::move(kept));
  Watch(kept_.back());
}

size_t ChannelKeeper::num_kept() const {
  MutexLock lock(mutex_);
  return kept_.size();
}

bool ChannelKeeper::IsConnecting(const Kept& kept) const {
  const grpc_connectivity_state state = kept.channel->GetState(false);
  // Idle: asked to connect, and not begun.
  return (state == GRPC_CHANNEL_IDLE || state == GRPC_CHANNEL_CONNECTING) &&
         clock_.Now() < kept.end;
}

void ChannelKeeper::Watch(Kept& kept) {
  kept.channel->NotifyOnStateChange(kept.channel->GetState(false),
                                    std::chrono::system_clock::now() + kLook, &queue_, &kept);
}

void ChannelKeeper::Run() {
  void* tag = nullptr;
  bool changed = false;
  while (queue_.Next(&tag, &changed)) {
    std::list<Kept> free;  // made before the lock, so it goes after it
    MutexLock lock(mutex_);
    const auto kept = std::find_if(kept_.begin(), kept_.end(),
                                   [tag](const Kept& candidate) { return &candidate == tag; });
    if (!is_closed_ && IsConnecting(*kept)) {
      Watch(*kept);
    } else {
      free.splice(free.end(), kept_, kept);
    }
  }
}

}  // namespace moebius
