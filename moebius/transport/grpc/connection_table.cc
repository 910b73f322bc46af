// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/connection_table.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

namespace moebius {

bool ConnectionTable::HasRoomFor(const std::string& host) {
  MutexLock lock(mutex_);
  if (connections_.size() >= max_connections_) {
    ++figures_.refused;
    return false;
  }
  const auto found = num_by_host_.find(host);
  if (found != num_by_host_.end() && found->second >= max_per_address_) {
    ++figures_.refused_for_address;
    return false;
  }
  return true;
}

uint64_t ConnectionTable::Add(const RemoteAddress& remote, OwnedFd duplicate, uint64_t generation,
                              absl::Duration now) {
  MutexLock lock(mutex_);
  const uint64_t id = next_id_++;
  Connection& connection = connections_[id];
  connection.remote = remote;
  connection.duplicate = std::move(duplicate);
  connection.generation = generation;
  connection.silent_since = now;
  ++num_by_host_[remote.host];
  by_address_.emplace(remote.host_and_port, id);
  ++figures_.accepted;
  return id;
}

std::string ConnectionTable::Remove(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return "";
  const RemoteAddress& remote = found->second.remote;
  const auto host = num_by_host_.find(remote.host);
  if (--host->second == 0) num_by_host_.erase(host);
  const auto [begin, end] = by_address_.equal_range(remote.host_and_port);
  by_address_.erase(
      std::find_if(begin, end, [&](const auto& entry) { return entry.second == id; }));
  std::string unused_host;
  if (!found->second.had_stream) {
    ++figures_.unused;
    unused_host = remote.host;
  }
  connections_.erase(found);
  return unused_host;
}

uint64_t ConnectionTable::OnStreamBegin(const std::string& host_and_port) {
  MutexLock lock(mutex_);
  // Two connections have one remote address when they came to two of ours: the one without a
  // stream is meant.
  uint64_t chosen = 0;
  const auto [begin, end] = by_address_.equal_range(host_and_port);
  for (auto entry = begin; entry != end; ++entry) {
    if (chosen == 0 || connections_[entry->second].num_streams == 0) chosen = entry->second;
  }
  if (chosen != 0) {
    ++connections_[chosen].num_streams;
    connections_[chosen].had_stream = true;
  }
  return chosen;
}

void ConnectionTable::OnStreamEnd(uint64_t id, absl::Duration now) {
  MutexLock lock(mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  if (--found->second.num_streams == 0) found->second.silent_since = now;
}

void ConnectionTable::CutSilent(absl::Duration deadline) {
  MutexLock lock(mutex_);
  for (auto& [id, connection] : connections_) {
    if (connection.num_streams > 0 || connection.is_cut || connection.silent_since > deadline) {
      continue;
    }
    connection.is_cut = true;
    ++figures_.silent_cut;
    shutdown(connection.duplicate.fd(), SHUT_RDWR);
  }
}

absl::Duration ConnectionTable::OldestSilence() const {
  MutexLock lock(mutex_);
  absl::Duration oldest = absl::InfiniteDuration();
  for (const auto& [id, connection] : connections_) {
    if (connection.num_streams == 0 && !connection.is_cut) {
      oldest = std::min(oldest, connection.silent_since);
    }
  }
  return oldest;
}

uint64_t ConnectionTable::num_of_generation(uint64_t generation) const {
  MutexLock lock(mutex_);
  return static_cast<uint64_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [&](const auto& entry) { return entry.second.generation == generation; }));
}

ConnectionFigures ConnectionTable::figures() const {
  MutexLock lock(mutex_);
  ConnectionFigures figures = figures_;
  figures.open = connections_.size();
  return figures;
}

}  // namespace moebius
