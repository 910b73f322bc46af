// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/link_user.h"

#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace moebius {

void Gate::Close() {
  MutexLock lock(mutex_);
  is_open_ = false;
}

void Gate::Open() {
  MutexLock lock(mutex_);
  is_open_ = true;
  changed_.SignalAll();
}

void Gate::Pass() {
  MutexLock lock(mutex_);
  while (!is_open_) changed_.Wait(mutex_);
}

LinkUser::LinkUser(std::unique_ptr<Link> link, Gate* gate) : gate_(gate), link_(std::move(link)) {
  link_->Start(*this);
}

LinkUser::~LinkUser() = default;

void LinkUser::Write(const WireFrame& frame) {
  WireFrame copy = frame;
  Until([&] { return link_->TryWrite(copy); });
}

size_t LinkUser::num_frames() const {
  MutexLock lock(mutex_);
  return frames_.size();
}

WireFrame LinkUser::frame(size_t index) const {
  MutexLock lock(mutex_);
  return frames_[index];
}

size_t LinkUser::num_writable() const {
  MutexLock lock(mutex_);
  return num_writable_;
}

bool LinkUser::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

absl::Status LinkUser::reason() const {
  MutexLock lock(mutex_);
  return reason_;
}

void LinkUser::OnFrame(WireFrame frame) {
  if (gate_ != nullptr) gate_->Pass();
  MutexLock lock(mutex_);
  frames_.push_back(std::move(frame));
}

void LinkUser::OnWritable() {
  MutexLock lock(mutex_);
  ++num_writable_;
}

void LinkUser::OnClosed(absl::Status reason) {
  MutexLock lock(mutex_);
  closed_ = true;
  reason_ = std::move(reason);
}

Host::~Host() {
  gate_.Open();
  Clear();
}

void Host::OnLink(std::unique_ptr<Link> link) {
  auto user = std::make_unique<LinkUser>(std::move(link), &gate_);
  MutexLock lock(mutex_);
  links_.push_back(std::move(user));
}

size_t Host::num_links() const {
  MutexLock lock(mutex_);
  return links_.size();
}

LinkUser& Host::link(size_t index) {
  MutexLock lock(mutex_);
  return *links_[index];
}

size_t Host::TotalFrames() const {
  MutexLock lock(mutex_);
  size_t total = 0;
  for (const auto& link : links_) total += link->num_frames();
  return total;
}

void Host::Clear() {
  std::vector<std::unique_ptr<LinkUser>> links;
  MutexLock lock(mutex_);
  links.swap(links_);
}

WireFrame NumberedFrame(uint64_t number, size_t payload_bytes) {
  WireFrame frame;
  for (size_t i = 0; i < kFrameHeaderBytes; ++i) {
    frame.header[i] = static_cast<uint8_t>(number * 31 + i);
  }
  if (payload_bytes == 0) return frame;
  BytesBuilder builder(payload_bytes);
  for (size_t i = 0; i < payload_bytes; ++i) {
    builder.data()[i] = static_cast<uint8_t>(number * 17 + i * 5 + (i >> 8));
  }
  frame.payload.push_back(std::move(builder).Share());
  return frame;
}

std::string Difference(const WireFrame& frame, uint64_t number, size_t payload_bytes) {
  const WireFrame expected = NumberedFrame(number, payload_bytes);
  if (frame.header != expected.header) return "the header differs";
  if (PayloadBytes(frame.payload) != payload_bytes) {
    return absl::StrCat(PayloadBytes(frame.payload), " bytes of payload, not ", payload_bytes);
  }
  if (payload_bytes == 0) return "";
  BytesBuilder bytes(payload_bytes);
  CopyPayload(frame.payload, bytes.data());
  const absl::Span<const uint8_t> want = expected.payload[0].span();
  for (size_t i = 0; i < payload_bytes; ++i) {
    if (bytes.data()[i] != want[i]) return absl::StrCat("byte ", i, " differs");
  }
  return "";
}

bool Until(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (!condition()) {
    if (absl::Now() > end) return false;
    absl::SleepFor(absl::Microseconds(200));
  }
  return true;
}

size_t NumDescriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

}  // namespace moebius
