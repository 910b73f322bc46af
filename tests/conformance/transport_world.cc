// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/transport_world.h"

#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"

namespace moebius {

Node::Node(const TransportOptions& options, LinkProvider& provider, Reactor& reactor) {
  auto transport = Transport::Make(options, provider, reactor, *this);
  MOEBIUS_CHECK(transport.ok());
  transport_ = *std::move(transport);
  ReservationSpec open;
  open.scope = ReservationScope::kKind;
  open.key.kind = kOpenKind;
  open.max_message_bytes = options.limits.max_message_bytes;
  open.max_messages = 16;
  Reserve(open);
}

void Node::OnLinkRefused(const LinkFacts& facts, const absl::Status& reason) {
  EXPECT_FALSE(facts.remote.empty());
  MutexLock lock(mutex_);
  refusals_.push_back(reason);
}

std::vector<absl::Status> Node::refusals() const {
  MutexLock lock(mutex_);
  return refusals_;
}

void Node::OnPeerState(const PeerInfo& peer) {
  {
    MutexLock lock(mutex_);
    history_.push_back(peer);
  }
  if (on_peer_state != nullptr) on_peer_state(peer);
}

std::vector<Delivery> Node::deliveries() const {
  MutexLock lock(mutex_);
  return deliveries_;
}

size_t Node::num_deliveries() const {
  MutexLock lock(mutex_);
  return deliveries_.size();
}

std::vector<PeerInfo> Node::history() const {
  MutexLock lock(mutex_);
  return history_;
}

PeerId Node::PeerNamed(const std::string& name) const {
  for (const PeerInfo& peer : transport_->peers()) {
    const bool is_up = peer.state == PeerState::kConnected || peer.state == PeerState::kSuspect;
    if (peer.name == name && is_up) return peer.id;
  }
  return PeerId();
}

PeerState Node::StateOf(PeerId id) const {
  PeerState state = PeerState::kConnecting;
  for (const PeerInfo& peer : history()) {
    if (peer.id == id) state = peer.state;
  }
  return state;
}

absl::Status Node::ReasonOf(PeerId id) const {
  absl::Status reason;
  for (const PeerInfo& peer : history()) {
    if (peer.id == id) reason = peer.reason;
  }
  return reason;
}

std::function<void(Delivery)> Node::Record() {
  return [this](Delivery delivery) {
    if (on_delivery != nullptr) on_delivery(delivery);
    MutexLock lock(mutex_);
    deliveries_.push_back(std::move(delivery));
  };
}

ReservationId Node::Reserve(ReservationSpec spec) {
  spec.on_delivery = Record();
  const auto id = transport_->Reserve(std::move(spec));
  EXPECT_TRUE(id.ok()) << id.status();
  return id.value_or(ReservationId());
}

TransportWorld::TransportWorld(const MediumFactory& factory) : medium_(factory.make(reactor_)) {}

TransportWorld::~TransportWorld() {
  // Nodes before what they use; the reactions that are left own links of theirs.
  nodes_.clear();
  reactor_.RunReady();
}

TransportOptions TransportWorld::SmallOptions(const std::string& name) {
  TransportOptions options;
  options.name = name;
  options.limits.max_payload_bytes = 4096;
  options.limits.max_message_bytes = 256 << 10;
  options.limits.max_metadata_bytes = 4096;
  options.limits.max_num_rows = 4096;
  options.limits.max_row_width = 4096;
  options.limits.max_layer = 60;
  options.limits.max_round = 15;
  options.window_bytes = {16 << 10, 16 << 10, 16 << 10};
  options.max_queued_bytes = 1 << 20;
  options.reservations.max_bytes = 64 << 20;
  return options;
}

FaultPlan& TransportWorld::NewPlan(uint64_t seed) {
  plans_.push_back(std::make_unique<FaultPlan>(seed));
  return *plans_.back();
}

Node& TransportWorld::Add(const TransportOptions& options, const FaultPlan* plan) {
  LinkProvider* provider = &medium_->provider();
  if (plan != nullptr) {
    faulty_.push_back(std::make_unique<FaultyProvider>(*provider, *plan, reactor_));
    provider = faulty_.back().get();
  }
  nodes_.push_back(std::make_unique<Node>(options, *provider, reactor_));
  return *nodes_.back();
}

void TransportWorld::Remove(Node& node) {
  std::erase_if(nodes_, [&node](const auto& owned) { return owned.get() == &node; });
}

Address TransportWorld::Listen(Node& node) {
  const auto address = node.transport().Listen(medium_->listen_address());
  EXPECT_TRUE(address.ok()) << address.status();
  return address.value_or(Address());
}

PeerId TransportWorld::Connect(Node& from, const Address& to, const std::string& to_name) {
  const auto id = from.transport().Connect(to);
  EXPECT_TRUE(id.ok()) << id.status();
  EXPECT_TRUE(Until([&] { return from.PeerNamed(to_name) == *id; })) << "not connected";
  return *id;
}

bool TransportWorld::Until(const std::function<bool()>& condition) {
  const auto start = std::chrono::steady_clock::now();
  do {
    reactor_.RunReady();
    if (condition()) return true;
    if (!medium_->takes_real_time()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  } while (std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
  return false;
}

void TransportWorld::Settle() {
  reactor_.RunReady();
  if (!medium_->takes_real_time()) return;
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    reactor_.RunReady();
  }
}

void TransportWorld::Advance(absl::Duration by) {
  const absl::Duration end = clock_.Now() + by;
  Settle();
  for (std::optional<absl::Duration> next = reactor_.NextTimer(); next.has_value() && *next <= end;
       next = reactor_.NextTimer()) {
    if (*next > clock_.Now()) clock_.Advance(*next - clock_.Now());
    Settle();
  }
  clock_.Advance(end - clock_.Now());
  Settle();
}

RawLink::RawLink(LinkProvider& provider, const Address& address, Lane lane) {
  auto link = provider.Dial(address, lane);
  MOEBIUS_CHECK(link.ok());
  link_ = *std::move(link);
  link_->Start(*this);
}

RawLink::~RawLink() { link_.reset(); }

void RawLink::Write(WireFrame frame) {
  {
    MutexLock lock(mutex_);
    unsent_.push_back(std::move(frame));
  }
  OnWritable();
}

void RawLink::WriteSealed(Frame frame, uint64_t incarnation) {
  frame.header.incarnation = incarnation;
  frame.header.sequence = sequence_++;
  frame.header.has_checksum = true;
  frame.header.checksum = FrameChecksum(frame.header, HashPayload(frame.payload));
  Write({EncodeFrameHeader(frame.header), std::move(frame.payload)});
}

void RawLink::OnFrame(WireFrame frame) {
  MutexLock lock(mutex_);
  frames_.push_back(std::move(frame));
}

void RawLink::OnWritable() {
  MutexLock lock(mutex_);
  while (!unsent_.empty() && !closed_ && link_->TryWrite(unsent_.front())) {
    unsent_.erase(unsent_.begin());
  }
}

void RawLink::OnClosed(absl::Status) {
  MutexLock lock(mutex_);
  closed_ = true;
}

bool RawLink::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

std::vector<WireFrame> RawLink::frames() const {
  MutexLock lock(mutex_);
  return frames_;
}

Message PositionMessage(FrameKind kind, uint64_t step, uint64_t num_rows, uint32_t row_width) {
  Message message;
  message.key.kind = kind;
  message.key.step = step;
  message.term = step + 1;
  message.epoch = step + 2;
  message.num_rows = num_rows;
  message.row_width = row_width;
  message.dtype = DType::kF32;
  message.metadata = SharedBytes::Copy(absl::StrCat("step ", step));
  std::vector<float> values(num_rows * row_width);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(step * 1000 + i / row_width);
  }
  message.rows = SharedBytes::Copy(absl::MakeConstSpan(
      reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)));
  return message;
}

std::string Difference(const Message& message) {
  const Message expected =
      PositionMessage(message.key.kind, message.key.step, message.num_rows, message.row_width);
  if (message.term != expected.term || message.epoch != expected.epoch) return "term or epoch";
  if (message.rows.view() != expected.rows.view()) {
    return absl::StrCat("rows of step ", message.key.step);
  }
  const absl::string_view metadata = message.metadata.view();
  const size_t size = expected.metadata.size();
  if (metadata.substr(0, size) != expected.metadata.view()) return "metadata";
  if (metadata.substr(size).find_first_not_of('\0') != absl::string_view::npos) return "padding";
  return "";
}

size_t NumDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

}  // namespace moebius
