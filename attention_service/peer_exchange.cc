// SPDX-License-Identifier: Apache-2.0
#include "attention_service/peer_exchange.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/wire/exchange_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

// A status that shares nothing with `status`, for another thread: copies share their words, and the
// distribution's absl counts them out of the thread sanitizer's sight.
absl::Status Detach(const absl::Status& status) {
  absl::Status detached(status.code(), status.message());
  status.ForEachPayload([&](absl::string_view type, const absl::Cord& payload) {
    detached.SetPayload(type, absl::Cord(std::string(payload)));
  });
  return detached;
}

SharedBytes GatherQueries(absl::Span<const StateNeed> needs, int32_t holder, Bf16Rows queries) {
  int64_t num_rows = 0;
  for (const StateNeed& need : needs) num_rows += need.holder == holder ? need.num_rows : 0;
  const size_t row_bytes = static_cast<size_t>(queries.width) * sizeof(Bf16);
  BytesBuilder builder(static_cast<size_t>(num_rows) * row_bytes);
  MutableBf16Rows out(reinterpret_cast<Bf16*>(builder.data()), num_rows, queries.width);
  int64_t row = 0;
  for (const StateNeed& need : needs) {
    if (need.holder != holder) continue;
    for (int64_t r = 0; r < need.num_rows; ++r, ++row) {
      std::copy_n(queries.row(need.row_begin + r), queries.width, out.row(row));
    }
  }
  return std::move(builder).Share();
}

}  // namespace

// What deliveries write and waits read.
struct PeerExchange::State {
  Mutex mutex;
  CondVar changed;
  std::map<int32_t, PeerId> peers MOEBIUS_GUARDED_BY(mutex);
  StepKey step MOEBIUS_GUARDED_BY(mutex);
  absl::Status cancelled MOEBIUS_GUARDED_BY(mutex);
  ExchangeFigures figures MOEBIUS_GUARDED_BY(mutex);
};

// The questions of one round, one for each holder.
struct PeerExchange::Ask {
  struct Part {
    int32_t holder = 0;
    ReservationId reservation;
    std::optional<absl::StatusOr<Message>> answer;  // guarded by State::mutex
  };
  std::vector<std::shared_ptr<Part>> parts;
  // What each need's answer holds; those of one holder follow one another in its message.
  struct Rows {
    int32_t holder = 0;
    int64_t num_rows = 0;
    int64_t width = 0;
  };
  std::vector<Rows> rows;
  std::vector<StateNeed> states;

  const Message& AnswerOf(int32_t holder) const {
    const auto found = std::find_if(parts.begin(), parts.end(),
                                    [&](const auto& part) { return part->holder == holder; });
    MOEBIUS_CHECK(found != parts.end());
    return **(*found)->answer;
  }
};

PeerExchange::PeerExchange(const Options& options, Transport& transport, const Clock& clock)
    : options_(options),
      transport_(transport),
      clock_(clock),
      state_(std::make_shared<State>()),
      answers_(options.shape, options.shard.num_ranks, transport) {}

PeerExchange::~PeerExchange() { EndStep(); }

void PeerExchange::SetPeer(int32_t rank, std::optional<PeerId> peer) {
  MutexLock lock(state_->mutex);
  if (peer.has_value()) {
    state_->peers[rank] = *peer;
  } else {
    state_->peers.erase(rank);
  }
  state_->changed.SignalAll();
}

void PeerExchange::Cancel(const StepKey& step, const absl::Status& reason) {
  MutexLock lock(state_->mutex);
  if (state_->step != step) return;
  state_->cancelled = reason;
  state_->changed.SignalAll();
}

void PeerExchange::CancelAny(const absl::Status& reason) {
  MutexLock lock(state_->mutex);
  state_->cancelled = reason;
  state_->changed.SignalAll();
}

void PeerExchange::BeginStep(const StepPlan& plan) {
  plan_ = plan;
  {
    MutexLock lock(state_->mutex);
    state_->step = StepKey::Of(plan);
    state_->cancelled = absl::OkStatus();
  }
  answers_.BeginStep(plan);
}

void PeerExchange::EndStep() {
  answers_.EndStep();
  for (const auto& [key, ask] : asks_) {
    for (const auto& part : ask->parts) transport_.CancelReservation(part->reservation);
  }
  asks_.clear();
}

MessageKey PeerExchange::KeyOf(FrameKind kind, int64_t layer, uint32_t round) const {
  return {.kind = kind,
          .step = plan_.step,
          .attempt = static_cast<uint32_t>(plan_.attempt),
          .layer = static_cast<uint32_t>(layer),
          .round = round};
}

absl::StatusOr<PeerId> PeerExchange::FindPeer(int32_t rank) {
  const absl::Duration end = clock_.Now() + options_.connect_timeout;
  MutexLock lock(state_->mutex);
  while (state_->cancelled.ok()) {
    const auto found = state_->peers.find(rank);
    if (found != state_->peers.end()) return found->second;
    const absl::Duration left = end - clock_.Now();
    if (left <= absl::ZeroDuration()) {
      return absl::UnavailableError(absl::StrCat("attention rank ", rank, " is not connected"));
    }
    state_->changed.WaitWithTimeout(state_->mutex, left);
  }
  return Detach(state_->cancelled);
}

// Reserves the answer, then asks.
absl::Status PeerExchange::Question(Message question, FrameKind answer_kind,
                                    uint64_t max_answer_bytes, int32_t holder, Ask& ask) {
  MOEBIUS_ASSIGN_OR_RETURN(const PeerId peer, FindPeer(holder));
  const auto context = absl::StrCat("attention rank ", holder);
  auto part = std::make_shared<Ask::Part>();
  part->holder = holder;
  ReservationSpec spec;
  spec.source = peer;
  spec.key = question.key;
  spec.key.kind = answer_kind;
  spec.max_message_bytes = max_answer_bytes;
  spec.deadline = clock_.Now() + options_.timeout;
  spec.on_delivery = [state = state_, part](Delivery delivery) {
    MutexLock lock(state->mutex);
    if (delivery.message.ok()) {
      ++state->figures.answers;
      state->figures.answer_bytes += static_cast<int64_t>(MessageBytes(*delivery.message));
    }
    if (delivery.message.ok()) {
      part->answer = std::move(delivery.message);
    } else {
      part->answer = Detach(delivery.message.status());
    }
    state->changed.SignalAll();
  };
  const absl::StatusOr<ReservationId> reservation = transport_.Reserve(std::move(spec));
  if (!reservation.ok()) return WithContext(reservation.status(), context);
  part->reservation = *reservation;
  ask.parts.push_back(part);
  question.term = plan_.term;
  const auto bytes = static_cast<int64_t>(MessageBytes(question));
  const auto sent = transport_.Send(peer, Lane::kDecode, std::move(question));
  if (!sent.ok()) return WithContext(sent.status(), context);
  MutexLock lock(state_->mutex);
  ++state_->figures.questions;
  state_->figures.question_bytes += bytes;
  return absl::OkStatus();
}

// Of a span, after the step.
int64_t PeerExchange::NumPositions(const KvSpanNeed& need) const {
  const SessionRows& session = plan_.sessions[static_cast<size_t>(need.session_index)];
  const PositionRange positions =
      SessionSpans(options_.shape.geometry, session.prompt_length).SpanPositions(need.span);
  return std::min(positions.end, session.position_end()) - positions.begin;
}

absl::Status PeerExchange::AskSpans(int64_t layer, uint32_t round,
                                    absl::Span<const KvSpanNeed> needs, HeadRange kv_heads) {
  const int64_t width = options_.shape.KvRowWidth(kv_heads);
  auto& ask = asks_[KeyOf(kKvReplyKind, layer, round)];
  ask = std::make_unique<Ask>();
  for (const KvSpanNeed& need : needs) {
    ask->rows.push_back({need.holder, NumPositions(need), width});
  }
  for (int32_t holder = 0; holder < options_.shard.num_ranks; ++holder) {
    std::vector<SessionSpan> spans;
    int64_t num_rows = 0;
    for (const KvSpanNeed& need : needs) {
      if (need.holder != holder) continue;
      num_rows += NumPositions(need);
      spans.push_back({plan_.sessions[static_cast<size_t>(need.session_index)].session, need.span});
    }
    if (spans.empty()) continue;
    MOEBIUS_RETURN_IF_ERROR(
        Question(BuildKvRequest(KeyOf(kKvRequestKind, layer, round), spans, kv_heads), kKvReplyKind,
                 MaxKvReplyBytes(num_rows, width), holder, *ask));
  }
  return absl::OkStatus();
}

absl::Status PeerExchange::AskHeads(int64_t layer, HeadPhase phase,
                                    absl::Span<const HeadNeed> needs) {
  const ExchangeShape& shape = options_.shape;
  const int64_t head_width = phase == HeadPhase::kQueries ? shape.head_size : shape.v_head_dim;
  const auto round = static_cast<uint32_t>(phase);
  auto& ask = asks_[KeyOf(kHeadReplyKind, layer, round)];
  ask = std::make_unique<Ask>();
  for (const HeadNeed& need : needs) {
    const int64_t width = need.heads.size() * head_width;
    ask->rows.push_back({need.holder, need.num_rows, width});
    MOEBIUS_RETURN_IF_ERROR(Question(
        BuildHeadRequest(KeyOf(kHeadRequestKind, layer, round),
                         {.phase = phase, .rank = options_.shard.rank, .heads = need.heads}),
        kHeadReplyKind, MaxReplyBytes(need.num_rows, width), need.holder, *ask));
  }
  return absl::OkStatus();
}

absl::Status PeerExchange::AskStates(int64_t layer, uint32_t round,
                                     absl::Span<const StateNeed> needs, Bf16Rows queries) {
  const ExchangeShape& shape = options_.shape;
  auto& ask = asks_[KeyOf(kStateReplyKind, layer, round)];
  ask = std::make_unique<Ask>();
  ask->states.assign(needs.begin(), needs.end());
  for (int32_t holder = 0; holder < options_.shard.num_ranks; ++holder) {
    std::vector<QueriedRows> parts;
    int64_t num_rows = 0;
    int64_t num_states = 0;
    for (const StateNeed& need : needs) {
      if (need.holder != holder) continue;
      parts.push_back({plan_.sessions[static_cast<size_t>(need.session_index)].session,
                       need.position_begin, need.num_rows});
      num_rows += need.num_rows;
      num_states += need.num_rows * shape.num_heads * need.num_spans;
    }
    if (parts.empty()) continue;
    MOEBIUS_RETURN_IF_ERROR(Question(
        BuildQueryStates(KeyOf(kQueryStatesKind, layer, round), parts,
                         GatherQueries(needs, holder, queries), num_rows * shape.num_heads,
                         shape.head_size),
        kStateReplyKind, MaxStateReplyBytes(num_states, shape.state_width()), holder, *ask));
  }
  return absl::OkStatus();
}

// Every answer of a round, or the first failure with the rank that it is about.
absl::StatusOr<std::unique_ptr<PeerExchange::Ask>> PeerExchange::Await(FrameKind kind,
                                                                       int64_t layer,
                                                                       uint32_t round) {
  const auto found = asks_.find(KeyOf(kind, layer, round));
  MOEBIUS_CHECK(found != asks_.end());
  std::unique_ptr<Ask> ask = std::move(found->second);
  asks_.erase(found);
  absl::Status failure;
  {
    MutexLock lock(state_->mutex);
    while (failure.ok()) {
      failure = Detach(state_->cancelled);
      size_t num_answers = 0;
      for (const auto& part : ask->parts) {
        if (!part->answer.has_value()) continue;
        ++num_answers;
        if (part->answer->ok() || !failure.ok()) continue;
        // Silence is the same to the step as death: another attempt may find the rank again.
        const absl::Status& status = part->answer->status();
        failure = WithContext(absl::IsDeadlineExceeded(status)
                                  ? absl::UnavailableError(absl::StrCat(
                                        "no answer for ", absl::FormatDuration(options_.timeout)))
                                  : status,
                              absl::StrCat("attention rank ", part->holder));
      }
      if (!failure.ok() || num_answers == ask->parts.size()) break;
      state_->changed.Wait(state_->mutex);
    }
  }
  if (failure.ok()) return ask;
  for (const auto& part : ask->parts) transport_.CancelReservation(part->reservation);
  return failure;
}

absl::Status PeerExchange::AwaitSpans(int64_t layer, uint32_t round,
                                      std::vector<ReceivedRows>& rows) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Ask> ask, Await(kKvReplyKind, layer, round));
  return SplitRows(*ask, ask->rows.empty() ? 1 : ask->rows.front().width, rows);
}

absl::Status PeerExchange::AwaitHeads(int64_t layer, HeadPhase phase,
                                      std::vector<ReceivedRows>& rows) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Ask> ask,
                           Await(kHeadReplyKind, layer, static_cast<uint32_t>(phase)));
  const ExchangeShape& shape = options_.shape;
  return SplitRows(*ask, phase == HeadPhase::kQueries ? shape.head_size : shape.v_head_dim, rows);
}

// Each need's rows, out of messages whose rows have `message_width` elements.
absl::Status PeerExchange::SplitRows(const Ask& ask, int64_t message_width,
                                     std::vector<ReceivedRows>& rows) const {
  std::map<int32_t, int64_t> elements;
  for (const Ask::Rows& need : ask.rows) elements[need.holder] += need.num_rows * need.width;
  std::map<int32_t, ReceivedRows> messages;
  for (const auto& [holder, count] : elements) {
    auto parsed = ParseReply(ask.AnswerOf(holder), count / message_width, message_width);
    if (!parsed.ok()) {
      return WithContext(parsed.status(), absl::StrCat("attention rank ", holder));
    }
    messages[holder] = *std::move(parsed);
  }
  std::map<int32_t, int64_t> next;
  rows.clear();
  for (const Ask::Rows& need : ask.rows) {
    const ReceivedRows& from = messages[need.holder];
    int64_t& begin = next[need.holder];
    rows.push_back({from.bytes, Bf16Rows(from.rows.data + begin, need.num_rows, need.width)});
    begin += need.num_rows * need.width;
  }
  return absl::OkStatus();
}

absl::Status PeerExchange::AwaitStates(int64_t layer, uint32_t round,
                                       std::vector<ReceivedStates>& states) {
  MOEBIUS_ASSIGN_OR_RETURN(const std::unique_ptr<Ask> ask, Await(kStateReplyKind, layer, round));
  const ExchangeShape& shape = options_.shape;
  std::map<int32_t, int64_t> counts;
  for (const StateNeed& need : ask->states) {
    counts[need.holder] += need.num_rows * shape.num_heads * need.num_spans;
  }
  std::map<int32_t, ReceivedStates> answers;
  for (const auto& [holder, count] : counts) {
    auto parsed = ParseStateReply(ask->AnswerOf(holder), count, shape.state_width());
    if (!parsed.ok()) {
      return WithContext(parsed.status(), absl::StrCat("attention rank ", holder));
    }
    answers[holder] = *std::move(parsed);
  }
  std::map<int32_t, int64_t> next;
  states.clear();
  for (const StateNeed& need : ask->states) {
    const int64_t begin = next[need.holder];
    next[need.holder] += need.num_rows * shape.num_heads * need.num_spans;
    const ReceivedStates& from = answers[need.holder];
    states.push_back({from.bytes, from.rows.Slice(begin, next[need.holder])});
  }
  return absl::OkStatus();
}

ExchangeFigures PeerExchange::figures() const {
  const int64_t parked = answers_.num_parked();
  MutexLock lock(state_->mutex);
  ExchangeFigures figures = state_->figures;
  figures.parked = parked;
  return figures;
}

}  // namespace moebius
