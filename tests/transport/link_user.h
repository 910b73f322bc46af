// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "moebius/base/mutex.h"
#include "moebius/transport/link.h"

namespace moebius {

/// Stops deliveries of its users until it is opened.
class Gate {
 public:
  void Close();
  void Open();
  void Pass();

 private:
  Mutex mutex_;
  CondVar changed_;
  bool is_open_ MOEBIUS_GUARDED_BY(mutex_) = true;
};

/// One end of a link that remembers what it heard.
class LinkUser final : public LinkSink {
 public:
  explicit LinkUser(std::unique_ptr<Link> link, Gate* gate = nullptr);
  ~LinkUser() override;
  /// Writes, waiting for room.
  void Write(const WireFrame& frame);
  void Close() { link_->Close(); }
  Link& link() { return *link_; }
  LinkFacts facts() const { return link_->facts(); }

  size_t num_frames() const;
  WireFrame frame(size_t index) const;
  size_t num_writable() const;
  bool closed() const;
  absl::Status reason() const;

  void OnFrame(WireFrame frame) override;
  void OnWritable() override;
  void OnClosed(absl::Status reason) override;

 private:
  Gate* const gate_;
  mutable Mutex mutex_;
  std::vector<WireFrame> frames_ MOEBIUS_GUARDED_BY(mutex_);
  size_t num_writable_ MOEBIUS_GUARDED_BY(mutex_) = 0;
  bool closed_ MOEBIUS_GUARDED_BY(mutex_) = false;
  absl::Status reason_ MOEBIUS_GUARDED_BY(mutex_);
  std::unique_ptr<Link> link_;  // last: ends the calls that use the above
};

/// Starts every link that comes.
class Host final : public LinkAcceptor {
 public:
  ~Host() override;
  void OnLink(std::unique_ptr<Link> link) override;
  size_t num_links() const;
  LinkUser& link(size_t index);
  size_t TotalFrames() const;
  void Clear();
  void Pause() { gate_.Close(); }
  void Resume() { gate_.Open(); }

 private:
  Gate gate_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<LinkUser>> links_ MOEBIUS_GUARDED_BY(mutex_);
};

/// A frame whose every byte depends on its number and place.
WireFrame NumberedFrame(uint64_t number, size_t payload_bytes);
/// Empty when `frame` is NumberedFrame(number, payload_bytes).
std::string Difference(const WireFrame& frame, uint64_t number, size_t payload_bytes);

/// Waits at most ten seconds.
bool Until(const std::function<bool()>& condition);
/// Open descriptors of this process.
size_t NumDescriptors();

}  // namespace moebius
