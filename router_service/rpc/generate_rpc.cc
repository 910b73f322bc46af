// SPDX-License-Identifier: Apache-2.0
#include "router_service/rpc/generate_rpc.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/clock.h"
#include "moebius/base/error.h"
#include "moebius/base/status.h"
#include "moebius/rpc/unary_call.h"
#include "moebius/wire/api/router_codec.h"
#include "moebius/wire/grpc/grpc_status.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::router::v1;

// Tokens that count where max_tokens is absent or out of range; either is settled at admission.
constexpr int64_t kUnsetMaxTokens = 256;
constexpr int64_t kMostTokens = int64_t{1} << 24;
constexpr absl::string_view kSeveralKeys = "several";  // of no form that has a key

}  // namespace

absl::string_view AuthorizationOf(const grpc::CallbackServerContext& context) {
  const auto [first, end] = context.client_metadata().equal_range("authorization");
  if (first == end) return "";
  // Who stands between may have added one of his own: neither is taken for the caller's.
  if (std::next(first) != end) return kSeveralKeys;
  return absl::string_view(first->second.data(), first->second.size());
}

std::string TraceparentOf(const grpc::CallbackServerContext& context) {
  const auto [first, end] = context.client_metadata().equal_range("traceparent");
  if (first == end || std::next(first) != end) return "";
  return std::string(first->second.data(), first->second.size());
}

absl::Duration GenerateDeadline(const GenerateRequest& request, absl::Duration call_time_left) {
  const int64_t max_tokens =
      std::clamp<int64_t>(request.max_tokens.value_or(kUnsetMaxTokens), 1, kMostTokens);
  const int64_t num_tokens = static_cast<int64_t>(request.token_ids.size()) + max_tokens;
  const absl::Duration allowance = kGenerateAllowance + num_tokens * kGenerateAllowancePerToken;
  return std::min({call_time_left, allowance, request.deadline.value_or(allowance)});
}

GenerateCall* GenerateCall::Start(GenerateCalls& calls, grpc::CallbackServerContext* context,
                                  const pb::GenerateRequest* request) {
  auto call = std::make_shared<GenerateCall>(calls, context, request);
  call->self_ = call;
  const absl::Status place = call->TakePlace();
  if (place.ok()) {
    if (calls.watch != nullptr) calls.watch->Add(call);
    call->Schedule();
  } else {
    calls.front.NoteRefused(place);
    MutexLock lock(call->mutex_);
    call->FinishOnce(place);
  }
  return call.get();
}

absl::Status GenerateCall::TakePlace() {
  if (calls_.gate != nullptr) {
    MOEBIUS_ASSIGN_OR_RETURN(std::shared_ptr<ClientPass> pass,
                             calls_.gate->Enter(AuthorizationOf(*context_), context_->peer()));
    MutexLock lock(mutex_);
    pass_ = std::move(pass);
  }
  is_counted_ = true;
  if (calls_.num_calls.fetch_add(1) < calls_.max_calls) return absl::OkStatus();
  return WithHint(absl::ResourceExhaustedError(
                      absl::StrCat(calls_.max_calls, " answers are under way, which is the limit")),
                  "try again later");
}

void GenerateCall::Schedule() {
  if (is_scheduled_.exchange(true)) return;
  // There is room: the queue has a place for each call, and a call has one task at a time.
  const bool taken = calls_.pool.TryRun([self = shared_from_this()] { self->TakeTurn(); });
  MOEBIUS_CHECK(taken);
}

void GenerateCall::TakeTurn() {
  // First: word that comes from here on asks for another turn.
  is_scheduled_.store(false);
  MutexLock lock(mutex_);
  if (is_finished_ || is_writing_ || is_stalled_) return;
  if (is_cancelled_) return FinishOnce(absl::CancelledError("the caller has gone"));
  if (stream_ == nullptr) Submit();
  if (!is_finished_) WriteNext();
}

void GenerateCall::Submit() {
  absl::StatusOr<GenerateRequest> request = FromProto(*request_);
  if (!request.ok()) {
    calls_.front.NoteRefused(request.status());
    return FinishOnce(request.status());
  }
  request->traceparent = TraceparentOf(*context_);
  request->caller =
      pass_ == nullptr ? std::string(PeerOfAddress(context_->peer())) : pass_->client();
  request->deadline = GenerateDeadline(*request, TimeLeft(*context_, absl::InfiniteDuration()));
  absl::StatusOr<std::shared_ptr<GenerateStream>> stream = calls_.front.Submit(*request);
  if (!stream.ok()) return FinishOnce(stream.status());
  if (pass_ != nullptr) pass_->Charge(static_cast<int64_t>(request->token_ids.size()));
  stream_ = *std::move(stream);
  stream_->SetReader([call = weak_from_this()] {
    if (const auto self = call.lock()) self->Schedule();
  });
}

void GenerateCall::WriteNext() {
  const std::optional<GenerateEvent> event = stream_->Next(absl::ZeroDuration());
  if (event.has_value()) {
    response_.Clear();
    ToProto(*event, &response_);
    if (pass_ != nullptr) pass_->Charge(static_cast<int64_t>(event->token_ids.size()));
    if (event->finished) response_.set_config_hash(calls_.front.model_info().config_hash);
    is_writing_ = true;
    write_begun_at_ = Clock::Monotonic().Now();
    StartWrite(&response_);
  } else if (stream_->ended()) {
    FinishOnce(stream_->status());
  }
}

void GenerateCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(mutex_);
    is_writing_ = false;
    if (!ok) is_cancelled_ = true;
  }
  Schedule();
}

void GenerateCall::EndIfStalled(absl::Duration now, absl::Duration max_wait) {
  {
    MutexLock lock(mutex_);
    if (!is_writing_ || is_finished_ || now - write_begun_at_ <= max_wait) return;
    is_stalled_ = true;
  }
  // Not under the lock: gRPC may run OnCancel here. The context is there: gRPC's OnDone comes after
  // Finish, which waits for is_stalled_.
  context_->TryCancel();
  {
    MutexLock lock(mutex_);
    is_stalled_ = false;
    is_cancelled_ = true;
    if (stream_ != nullptr) stream_->Cancel();
  }
  Schedule();
}

void GenerateCall::OnCancel() {
  {
    MutexLock lock(mutex_);
    is_cancelled_ = true;
    if (stream_ != nullptr) stream_->Cancel();
    if (is_finished_) return;
  }
  Schedule();
}

void GenerateCall::OnDone() {
  std::shared_ptr<GenerateStream> stream;
  {
    MutexLock lock(mutex_);
    is_finished_ = true;
    stream = std::move(stream_);
    pass_.reset();
  }
  // When this returns the lead leaves no more word here.
  if (stream != nullptr) stream->SetReader(nullptr);
  std::shared_ptr<GenerateCall> self = std::move(self_);
}

void GenerateCall::FinishOnce(const absl::Status& status) {
  if (!std::exchange(is_finished_, true)) Finish(ToGrpcStatus(status));
}

}  // namespace moebius
