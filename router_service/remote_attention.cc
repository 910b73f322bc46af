// SPDX-License-Identifier: Apache-2.0
#include "router_service/remote_attention.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/attention/head_groups.h"
#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/mutex.h"
#include "moebius/base/status.h"
#include "moebius/transport/delivery_cond_var.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/row_codec.h"
#include "moebius/wire/step_codec.h"

namespace moebius {
namespace {

// A step of up to so many rows is not held up by bulk.
constexpr int64_t kDecodeRows = 64;

std::string NameOf(int32_t rank) { return absl::StrCat("attention rank ", rank); }

bool IsFailure(const absl::StatusOr<Message>& reply) {
  absl::Status failure;
  return !reply.ok() || (IsFailedReply(*reply, &failure) && !failure.ok());
}

SharedBytes GatherRows(const OwnedRows& owned, Bf16Rows rows) {
  BytesBuilder builder(static_cast<size_t>(owned.num_rows * rows.width) * sizeof(Bf16));
  auto* out = reinterpret_cast<Bf16*>(builder.data());
  for (const RowRange& range : owned.step_rows) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      out = std::copy_n(rows.row(row), rows.width, out);
    }
  }
  return std::move(builder).Share();
}

}  // namespace

KvPool SharedKvPool(absl::Span<const KvPool> ranks, const SpanGeometry& geometry) {
  MOEBIUS_CHECK(!ranks.empty());
  if (ranks.size() == 1) return ranks[0];
  KvPool shared{.block_tokens = static_cast<int64_t>(ranks.size()) * geometry.span()};
  const int64_t uneven_blocks = geometry.is_canonical() ? 0 : 2;
  for (const KvPool& rank : ranks) {
    const int64_t num_spans =
        rank.num_blocks / (geometry.span() / rank.block_tokens + uneven_blocks);
    if (&rank == &ranks[0] || num_spans < shared.num_blocks) shared.num_blocks = num_spans;
  }
  return shared;
}

namespace {

RemoteAttention::Options Complete(RemoteAttention::Options options) {
  options.method.num_ranks = options.num_ranks;
  options.method.span = options.geometry.span();
  options.method.key_block = options.geometry.key_block();
  options.method.sum = options.geometry.sum();
  options.method.layout = options.geometry.layout();
  return options;
}

}  // namespace

RemoteAttention::RemoteAttention(const Options& options, Transport& transport,
                                 PeerDirectory& directory, const Clock& clock)
    : options_(Complete(options)),
      transport_(transport),
      directory_(directory),
      clock_(clock),
      ranks_(static_cast<size_t>(options.num_ranks)),
      owned_(static_cast<size_t>(options.num_ranks)),
      replies_(static_cast<size_t>(options.num_ranks)),
      changed_(transport.poller()) {
  MOEBIUS_CHECK_GE(options.num_ranks, 1);
  listener_ = directory_.AddListener([this] {
    MutexLock lock(mutex_);
    ++num_changes_;
    changed_.SignalAll();
  });
}

RemoteAttention::~RemoteAttention() {
  AbortStep();
  directory_.RemoveListener(listener_);
}

// Who the ranks are now. One that is another process than before has lost what its life held.
absl::Status RemoteAttention::FindRanks() {
  absl::Status status;
  for (int32_t rank = 0; rank < options_.num_ranks; ++rank) {
    std::optional<PeerId>& known = ranks_[static_cast<size_t>(rank)];
    const std::optional<PeerId> peer = directory_.AttentionPeer(rank);
    if (known.has_value() && peer != known) LoseRank(rank);
    known = peer;
    if (!status.ok() || (peer.has_value() && directory_.IsAttentionUsable(rank))) continue;
    status = absl::UnavailableError(
        absl::StrCat(NameOf(rank), peer.has_value() ? " is not usable now" : " is missing"));
  }
  return status;
}

void RemoteAttention::LoseRank(int32_t rank) {
  for (auto& [id, held] : sessions_) {
    const int32_t first_rank = FirstRankOf(options_.method, id);
    const SessionSpans spans(options_.geometry, held.prompt_length);
    const SpanRange held_spans{0, spans.NumSpans(held.length)};
    if (NumStatesOf(spans, held_spans, first_rank, {rank, options_.num_ranks}) > 0)
      held.is_lost = true;
  }
}

// A rank does not have what it should: no session of the step can be believed in.
void RemoteAttention::LoseStep() {
  for (const SessionRows& rows : plan_.sessions) {
    const auto found = sessions_.find(rows.session);
    if (found != sessions_.end() && rows.position_begin > 0) found->second.is_lost = true;
  }
}

absl::Status RemoteAttention::BeginStep(const StepPlan& step) {
  AbortStep();
  MOEBIUS_RETURN_IF_ERROR(FindRanks());
  plan_ = step;
  if (options_.term != 0) plan_.term = options_.term;
  for (SessionRows& rows : plan_.sessions) {
    rows.first_rank = FirstRankOf(options_.method, rows.session);
    const auto found = sessions_.find(rows.session);
    if (found == sessions_.end() || !found->second.is_lost || rows.position_begin == 0) continue;
    return absl::UnavailableError(
        absl::StrCat("session ", rows.session.value(), " has lost keys with an attention rank"));
  }
  SetMethods(options_.method, plan_);
  MOEBIUS_ASSIGN_OR_RETURN(const Message message, BuildStepPlan(plan_));
  is_open_ = true;
  takes_part_.assign(owned_.size(), false);
  for (int32_t rank = 0; rank < options_.num_ranks; ++rank) {
    const Shard shard{rank, options_.num_ranks};
    OwnedRows& owned = owned_[static_cast<size_t>(rank)];
    FillOwnedRows(plan_, options_.geometry, shard, owned);
    takes_part_[static_cast<size_t>(rank)] =
        owned.num_rows > 0 || TakesPart(plan_, options_.geometry, shard);
    MOEBIUS_RETURN_IF_ERROR(Send(rank, Lane::kControl, message));
  }
  for (const SessionRows& rows : plan_.sessions) {
    if (rows.num_rows > 0) sessions_[rows.session].prompt_length = rows.prompt_length;
  }
  return absl::OkStatus();
}

absl::Status RemoteAttention::RunLayer(LayerId layer, Bf16Rows normed, MutableBf16Rows out) {
  if (!is_open_) return absl::FailedPreconditionError("attention has no open step");
  MOEBIUS_CHECK_EQ(normed.num_rows, plan_.num_rows);
  absl::Status status;
  for (int32_t rank = 0; rank < options_.num_ranks && status.ok(); ++rank) {
    if (!takes_part_[static_cast<size_t>(rank)]) continue;
    status = Ask(rank, layer, normed);
  }
  if (status.ok()) status = Await();
  for (int32_t rank = 0; rank < options_.num_ranks && status.ok(); ++rank) {
    status = TakeReply(rank, out);
  }
  if (!status.ok()) EndQuestions();
  return status;
}

// Nothing of the layer arrives afterwards.
void RemoteAttention::EndQuestions() {
  for (Reply& reply : replies_) {
    if (!std::exchange(reply.is_asked, false)) continue;
    if (transport_.CancelReservation(reply.reservation)) continue;
    MutexLock lock(mutex_);
    while (!reply.message.has_value()) changed_.Wait(mutex_);  // it is on its way
    reply.message.reset();
  }
}

// Reserves the reply, then asks.
absl::Status RemoteAttention::Ask(int32_t rank, LayerId layer, Bf16Rows normed) {
  const OwnedRows& owned = owned_[static_cast<size_t>(rank)];
  Reply& reply = replies_[static_cast<size_t>(rank)];
  Message message;
  message.key = {.kind = kAttentionRowsKind,
                 .step = plan_.step,
                 .attempt = static_cast<uint32_t>(plan_.attempt),
                 .layer = static_cast<uint32_t>(layer.value())};
  message.term = plan_.term;
  message.budget_ms = static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.timeout));
  SetRows(message, GatherRows(owned, normed), owned.num_rows, normed.width);
  ReservationSpec spec;
  spec.source = *ranks_[static_cast<size_t>(rank)];
  spec.key = message.key;
  spec.key.kind = kAttentionReplyKind;
  spec.max_message_bytes = MaxReplyBytes(owned.num_rows, normed.width);
  spec.deadline = clock_.Now() + options_.timeout;
  // Small enough to be stored in place. `this` outlives it: no question stays open.
  spec.on_delivery = [this, rank](Delivery delivery) { OnDelivery(rank, std::move(delivery)); };
  const absl::StatusOr<ReservationId> reservation = transport_.Reserve(std::move(spec));
  if (!reservation.ok()) {
    if (absl::IsUnavailable(reservation.status())) {
      directory_.NoteGone(*ranks_[static_cast<size_t>(rank)]);
    }
    return WithContext(reservation.status(), NameOf(rank));
  }
  reply.reservation = *reservation;
  reply.is_asked = true;
  return Send(rank, plan_.num_rows <= kDecodeRows ? Lane::kDecode : Lane::kBulk,
              std::move(message));
}

// On a thread of the transport.
void RemoteAttention::OnDelivery(int32_t rank, Delivery delivery) {
  MutexLock lock(mutex_);
  if (delivery.message.ok()) {
    ++figures_.messages_received;
    figures_.bytes_received += static_cast<int64_t>(MessageBytes(*delivery.message));
  }
  replies_[static_cast<size_t>(rank)].message = std::move(delivery.message);
  changed_.SignalAll();
}

// Until all have answered, one has failed, or a rank of the step is gone: others may wait for it.
absl::Status RemoteAttention::Await() {
  const absl::Duration begin = clock_.Now();
  absl::Status status = CheckRanks();
  MutexLock lock(mutex_);
  uint64_t seen = num_changes_;
  while (status.ok()) {
    bool is_complete = true;
    bool has_failure = false;
    for (const Reply& reply : replies_) {
      if (!reply.is_asked) continue;
      is_complete = is_complete && reply.message.has_value();
      has_failure = has_failure || (reply.message.has_value() && IsFailure(*reply.message));
    }
    if (is_complete || has_failure) break;
    changed_.Wait(mutex_);
    if (num_changes_ == seen) continue;
    seen = num_changes_;
    // The directory calls back under its own lock.
    mutex_.Unlock();
    status = CheckRanks();
    mutex_.Lock();
  }
  figures_.wait_seconds += absl::ToDoubleSeconds(clock_.Now() - begin);
  return status;
}

// Whether all ranks are still those of the step.
absl::Status RemoteAttention::CheckRanks() const {
  for (int32_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (directory_.AttentionPeer(rank) == ranks_[static_cast<size_t>(rank)]) continue;
    return absl::UnavailableError(absl::StrCat(NameOf(rank), " is gone"));
  }
  return absl::OkStatus();
}

// The reply's rows into `out`, or its failure; nothing where there is none (yet).
absl::Status RemoteAttention::TakeReply(int32_t rank, MutableBf16Rows out) {
  Reply& reply = replies_[static_cast<size_t>(rank)];
  std::optional<absl::StatusOr<Message>> message;
  {
    MutexLock lock(mutex_);
    message = std::exchange(reply.message, std::nullopt);  // no reply is kept for the next layer
  }
  if (!message.has_value()) return absl::OkStatus();
  reply.is_asked = false;
  // The end of the reservation, not an answer of the rank.
  if (absl::IsUnavailable(message->status())) {
    directory_.NoteGone(*ranks_[static_cast<size_t>(rank)]);
  }
  const OwnedRows& owned = owned_[static_cast<size_t>(rank)];
  absl::StatusOr<ReceivedRows> received = message->ok()
                                              ? ParseReply(**message, owned.num_rows, out.width)
                                              : absl::StatusOr<ReceivedRows>(message->status());
  if (absl::IsDeadlineExceeded(received.status())) {
    received = absl::UnavailableError(
        absl::StrCat("no reply for ", absl::FormatDuration(options_.timeout)));
  }
  if (!received.ok()) {
    absl::Status status = WithContext(received.status(), NameOf(rank));
    // A rank that is about to end gives the step up: another try finds it gone.
    if (absl::IsCancelled(status)) return absl::UnavailableError(status.message());
    if (!absl::IsFailedPrecondition(status)) return status;
    LoseStep();
    return absl::UnavailableError(status.message());
  }
  int64_t from = 0;
  for (const RowRange& range : owned.step_rows) {
    for (int64_t row = range.begin; row < range.end; ++row, ++from) {
      std::copy_n(received->rows.row(from), out.width, out.row(row));
    }
  }
  return absl::OkStatus();
}

uint32_t RemoteAttention::step_methods() const {
  uint32_t methods = 0;
  if (!is_open_ || options_.num_ranks == 1) return methods;
  for (const SessionRows& rows : plan_.sessions) {
    const bool has_prompt_rows = rows.num_rows > 0 && rows.position_begin < rows.prompt_length;
    if (has_prompt_rows) methods |= uint32_t{1} << static_cast<int>(rows.method);
  }
  return methods;
}

absl::Status RemoteAttention::CommitStep() {
  if (!is_open_) return absl::FailedPreconditionError("attention has no open step");
  is_open_ = false;
  // A rank that died meanwhile is found by the next step; this step's rows are complete.
  SendToAll(BuildStepEnd(plan_, StepEnd::kCommit));
  for (const SessionRows& rows : plan_.sessions) {
    if (rows.num_rows == 0) continue;
    Held& held = sessions_[rows.session];
    if (rows.position_begin == 0) held.is_lost = false;
    held.length = std::max(held.length, rows.position_end());
  }
  return absl::OkStatus();
}

void RemoteAttention::AbortStep() {
  if (!is_open_) return;
  is_open_ = false;
  SendToAll(BuildStepEnd(plan_, StepEnd::kAbort));
}

void RemoteAttention::EndSession(SessionId session) {
  if (sessions_.erase(session) == 0) return;
  SendToAll(BuildSessionEnd(plan_.term, session));
}

std::vector<SessionId> RemoteAttention::TakeLostSessions() {
  static_cast<void>(FindRanks());
  std::vector<SessionId> lost;
  for (const auto& [id, held] : sessions_) {
    if (held.is_lost) lost.push_back(id);
  }
  for (const SessionId session : lost) EndSession(session);
  MutexLock lock(mutex_);
  figures_.lost_sessions += static_cast<int64_t>(lost.size());
  return lost;
}

KvPool RemoteAttention::kv_pool() const {
  KvPool pool = options_.pool;
  pool.used_blocks = 0;
  for (const auto& [id, held] : sessions_) pool.used_blocks += pool.BlocksFor(held.length);
  return pool;
}

bool RemoteAttention::AllUsable() const {
  for (int32_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (!directory_.IsAttentionUsable(rank)) return false;
  }
  return true;
}

bool RemoteAttention::WaitUntilUsable(absl::Duration timeout) {
  const absl::Duration end = clock_.Now() + timeout;
  while (true) {
    uint64_t seen = 0;
    {
      MutexLock lock(mutex_);
      seen = num_changes_;
    }
    if (AllUsable()) return true;
    MutexLock lock(mutex_);
    while (num_changes_ == seen) {
      const absl::Duration left = end - clock_.Now();
      if (left <= absl::ZeroDuration()) return false;
      changed_.WaitWithTimeout(mutex_, left);
    }
  }
}

absl::Status RemoteAttention::Send(int32_t rank, Lane lane, Message message) {
  const auto bytes = static_cast<int64_t>(MessageBytes(message));
  const auto sent = transport_.Send(*ranks_[static_cast<size_t>(rank)], lane, std::move(message));
  if (!sent.ok()) {
    if (absl::IsUnavailable(sent.status())) {
      directory_.NoteGone(*ranks_[static_cast<size_t>(rank)]);
    }
    return WithContext(sent.status(), NameOf(rank));
  }
  MutexLock lock(mutex_);
  ++figures_.messages_sent;
  figures_.bytes_sent += bytes;
  return absl::OkStatus();
}

// A rank that is not there has nothing to end.
void RemoteAttention::SendToAll(const Message& message) {
  for (int32_t rank = 0; rank < options_.num_ranks; ++rank) {
    if (!ranks_[static_cast<size_t>(rank)].has_value()) continue;
    static_cast<void>(Send(rank, Lane::kControl, message));
  }
}

PortTraffic RemoteAttention::traffic() const {
  MutexLock lock(mutex_);
  const RemoteAttentionFigures figures = figures_;
  return {figures.messages_sent, figures.bytes_sent, figures.bytes_received};
}

RemoteAttentionFigures RemoteAttention::figures() const {
  MutexLock lock(mutex_);
  return figures_;
}

}  // namespace moebius
