// SPDX-License-Identifier: Apache-2.0
#include "router_service/lead.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/clock.h"
#include "moebius/base/executor.h"
#include "moebius/model/tokenizer.h"
#include "tests/router_service/fake_rows.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Outcome {
  std::vector<int64_t> token_ids;
  GenerateEvent last;
  absl::Status status;
  std::vector<GenerateEvent> events;
};

class LeadTest : public testing::Test {
 protected:
  LeadTest() {
    options_.vocab_size = 97;
    options_.max_positions = 64;
    options_.schedule = {16, 8};
  }

  void MakeLead(const Tokenizer* tokenizer = nullptr) {
    lead_ = std::make_unique<Lead>(options_, &rows_, &executor_, tokenizer, clock_);
  }

  static GenerateRequest Request(std::vector<int64_t> ids, int64_t max_tokens, uint64_t seed = 1) {
    GenerateRequest request;
    request.token_ids = std::move(ids);
    request.max_tokens = max_tokens;
    request.temperature = 1;
    request.seed = seed;
    return request;
  }

  std::shared_ptr<GenerateStream> Submit(const GenerateRequest& request) {
    auto stream = lead_->Submit(request);
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *stream;
  }

  void RunAll() {
    while (lead_->RunOneStep()) {
    }
  }

  static Outcome Read(GenerateStream& stream) {
    Outcome outcome;
    while (auto event = stream.Next(absl::ZeroDuration())) {
      outcome.token_ids.insert(outcome.token_ids.end(), event->token_ids.begin(),
                               event->token_ids.end());
      outcome.last = *event;
      outcome.events.push_back(*event);
    }
    outcome.status = stream.status();
    return outcome;
  }

  Outcome RunAlone(const GenerateRequest& request) {
    FakeRows rows;
    Executor executor(1);
    Lead lead(options_, &rows, &executor, nullptr, clock_);
    auto stream = *lead.Submit(request);
    while (lead.RunOneStep()) {
    }
    return Read(*stream);
  }

  void ExpectNothingHeld() {
    EXPECT_EQ(rows_.num_sessions(), 0u);
    EXPECT_EQ(lead_->usage().running_sessions, 0);
    EXPECT_EQ(lead_->usage().queued_requests, 0);
    EXPECT_EQ(lead_->usage().reserved_kv_tokens, 0);
  }

  LeadOptions options_;
  FakeRows rows_;
  Executor executor_{2};
  FakeClock clock_;
  std::unique_ptr<Lead> lead_;
};

TEST_F(LeadTest, AnswersWithAsManyTokensAsAsked) {
  MakeLead();
  auto stream = Submit(Request({1, 2, 3}, 5));
  RunAll();
  const Outcome outcome = Read(*stream);
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_TRUE(stream->ended());
  EXPECT_EQ(outcome.token_ids.size(), 5u);
  EXPECT_TRUE(outcome.last.finished);
  EXPECT_EQ(outcome.last.finish_reason, FinishReason::kLength);
  EXPECT_EQ(outcome.last.prompt_tokens, 3);
  EXPECT_EQ(outcome.last.completion_tokens, 5);
  EXPECT_TRUE(outcome.last.exactness.exact());
  // Prompt, then four decode steps: the last token is told and never run.
  EXPECT_EQ(rows_.steps.size(), 5u);
  ExpectNothingHeld();
}

TEST_F(LeadTest, GivesTheSameAnswerAloneAndAmongOthers) {
  const Outcome alone = RunAlone(Request({5, 6, 7}, 20, 42));
  MakeLead();
  std::vector<std::shared_ptr<GenerateStream>> others;
  for (int64_t id = 1; id <= 7; ++id) {
    GenerateRequest request = Request({id, id, id + 1, 9}, 10 + id, static_cast<uint64_t>(id));
    if (id % 2 == 0) request.seed.reset();
    if (id % 3 == 0) request.temperature = 0;
    others.push_back(Submit(request));
    if (id == 4) others.push_back(Submit(Request({5, 6, 7}, 20, 42)));
  }
  RunAll();
  const Outcome among = Read(*others[4]);
  EXPECT_EQ(among.token_ids, alone.token_ids);
  EXPECT_EQ(among.last.logits_hash, alone.last.logits_hash);
  EXPECT_EQ(among.last.tokens_hash, alone.last.tokens_hash);
}

TEST_F(LeadTest, AnAnswerTellsWhatACapacityTookFromItsOwnRowsAlone) {
  options_.capacity.factor = 1.25;
  rows_.crowded_token = 90;
  MakeLead();
  auto crowded = Submit(Request({1, 90, 90}, 3));
  auto other = Submit(Request({2, 3}, 3));
  RunAll();
  const GenerateEvent last = Read(*crowded).last;
  EXPECT_FALSE(last.exactness.exact());
  EXPECT_GE(last.exactness.dropped, 4);
  EXPECT_GE(last.exactness.rerouted, 2);
  ASSERT_EQ(last.exactness.reasons.size(), 1u);
  EXPECT_THAT(last.exactness.reasons[0], HasSubstr("capacity factor 1.25 by weight"));
  const Outcome untouched = Read(*other);
  ASSERT_EQ(std::count(untouched.token_ids.begin(), untouched.token_ids.end(), 90), 0);
  EXPECT_TRUE(untouched.last.exactness.exact());
}

TEST_F(LeadTest, ARequestThatACapacityRejectsEndsAloneWithItsPosition) {
  const Outcome alone = RunAlone(Request({2, 3}, 4));
  rows_.rejected_token = 90;
  MakeLead();
  auto rejected = Submit(Request({1, 90}, 4));
  auto other = Submit(Request({2, 3}, 4));
  RunAll();
  const absl::Status status = Read(*rejected).status;
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no room for position 1"));
  const Outcome mate = Read(*other);
  EXPECT_TRUE(mate.status.ok());
  EXPECT_EQ(mate.last.logits_hash, alone.last.logits_hash);
  ExpectNothingHeld();
}

TEST_F(LeadTest, DependsOnTheSeedAndOnNothingElse) {
  const Outcome seven = RunAlone(Request({1, 2}, 20, 7));
  EXPECT_EQ(RunAlone(Request({1, 2}, 20, 7)).token_ids, seven.token_ids);
  EXPECT_NE(RunAlone(Request({1, 2}, 20, 8)).token_ids, seven.token_ids);
}

TEST_F(LeadTest, ReturnsTheDrawnSeedSoThatItCanBeRepeated) {
  GenerateRequest request = Request({1, 2}, 12);
  request.seed.reset();
  const Outcome first = RunAlone(request);
  EXPECT_LT(first.last.sampling.seed, uint64_t{1} << 53);
  request.seed = first.last.sampling.seed;
  EXPECT_EQ(RunAlone(request).token_ids, first.token_ids);
}

TEST_F(LeadTest, CutsALongPromptIntoChunksWithTheSameAnswer) {
  GenerateRequest request = Request({}, 4);
  for (int64_t id = 0; id < 30; ++id) request.token_ids.push_back(id);
  const Outcome in_chunks = RunAlone(request);
  options_.schedule = {64, 64};
  const Outcome whole = RunAlone(request);
  EXPECT_EQ(in_chunks.token_ids, whole.token_ids);
  EXPECT_EQ(in_chunks.last.timing.prefill_steps, 4);
  EXPECT_EQ(whole.last.timing.prefill_steps, 1);
}

// Also where it is read again after a loss, with what was generated in any cuts behind it.
TEST_F(LeadTest, TakesAPromptThatIsSeenWholeInOneStep) {
  options_.schedule = {.row_budget = 10, .chunk_rows = 8, .whole_prompts = true};
  MakeLead();
  GenerateRequest request = Request({1, 2, 3, 4, 5, 6, 7}, 12);
  const Outcome alone = RunAlone(request);
  request.recompute_after = 9;
  auto stream = Submit(request);
  auto other = Submit(Request({7, 6, 5, 4, 3, 2}, 12));
  RunAll();
  EXPECT_EQ(Read(*stream).last.logits_hash, alone.last.logits_hash);
  EXPECT_TRUE(Read(*other).status.ok());
  int64_t num_prompts = 0;
  for (const StepRequest& step : rows_.steps) {
    EXPECT_TRUE(CheckWholePrompts(step.plan).ok());
    for (const SessionRows& rows : step.plan.sessions) num_prompts += rows.position_begin == 0;
  }
  EXPECT_EQ(num_prompts, 3);
  EXPECT_THAT(std::string(lead_->Submit(Request(std::vector<int64_t>(9, 1), 1)).status().message()),
              HasSubstr("goes in one step"));
}

TEST_F(LeadTest, TellsHowFarALongPromptHasCome) {
  MakeLead();
  GenerateRequest request = Request({}, 1);
  request.token_ids.assign(20, 4);
  auto stream = Submit(request);
  RunAll();
  std::vector<int64_t> progress;
  for (const GenerateEvent& event : Read(*stream).events) {
    progress.push_back(event.prefilled_tokens);
  }
  EXPECT_THAT(progress, ElementsAre(8, 16, 20));
}

TEST_F(LeadTest, ComputesAgainFromPromptAndAnswerWithTheSameBits) {
  const Outcome undisturbed = RunAlone(Request({1, 2, 3, 4}, 16, 3));
  for (int64_t after = 0; after < 16; ++after) {
    GenerateRequest request = Request({1, 2, 3, 4}, 16, 3);
    request.recompute_after = after;
    const Outcome outcome = RunAlone(request);
    EXPECT_EQ(outcome.token_ids, undisturbed.token_ids) << after;
    EXPECT_EQ(outcome.last.logits_hash, undisturbed.last.logits_hash) << after;
  }
}

TEST_F(LeadTest, EndsAtAnEndMarkerAndKeepsItInTheAnswer) {
  const Outcome outcome = RunAlone(Request({1, 2, 3}, 20));
  options_.eos_token_ids = {outcome.token_ids[6]};
  const Outcome ended = RunAlone(Request({1, 2, 3}, 20));
  EXPECT_EQ(ended.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(ended.last.matched_stop, "eos " + std::to_string(outcome.token_ids[6]));
  EXPECT_EQ(ended.token_ids.back(), outcome.token_ids[6]);
  EXPECT_LE(ended.token_ids.size(), 7u);
}

TEST_F(LeadTest, HoldsBackWhatCouldBePartOfAStopAndNeverSendsIt) {
  ModelConfig config;
  const auto tokenizer = MakeByteTokenizer(config);
  MakeLead(tokenizer.get());
  auto free_stream = Submit(Request({1, 2, 3}, 12));
  RunAll();
  const Outcome free = Read(*free_stream);
  GenerateRequest request = Request({1, 2, 3}, 12);
  for (size_t index = 4; index < 7; ++index) {
    request.stop.resize(1);
    request.stop[0].push_back(static_cast<char>(free.token_ids[index]));
  }
  auto stream = Submit(request);
  RunAll();
  const Outcome stopped = Read(*stream);
  EXPECT_EQ(stopped.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.last.matched_stop, request.stop[0]);
  EXPECT_EQ(stopped.last.completion_tokens, static_cast<int64_t>(stopped.token_ids.size()));
  // The answer is the free one up to the first place where the stop matches.
  ASSERT_LE(stopped.token_ids.size(), 4u);
  EXPECT_TRUE(
      std::equal(stopped.token_ids.begin(), stopped.token_ids.end(), free.token_ids.begin()));
}

TEST_F(LeadTest, HashesWhatItTellsAndNoMore) {
  // The same answer, once cut by length and once by a stop behind it, has the same hashes.
  const Outcome free = RunAlone(Request({1, 2, 3}, 12));
  const Outcome cut = RunAlone(Request({1, 2, 3}, 4));
  GenerateRequest request = Request({1, 2, 3}, 12);
  request.stop_token_ids = {free.token_ids[4]};
  const Outcome stopped = RunAlone(request);
  if (stopped.token_ids.size() == 4) {
    EXPECT_EQ(stopped.last.logits_hash, cut.last.logits_hash);
    EXPECT_EQ(stopped.last.tokens_hash, cut.last.tokens_hash);
  }
  EXPECT_EQ(stopped.last.matched_stop, "token " + std::to_string(free.token_ids[4]));
}

TEST_F(LeadTest, EventsTogetherAreTheAnswerAndEndOnce) {
  MakeLead();
  auto stream = Submit(Request({1, 2, 3}, 9));
  RunAll();
  const Outcome outcome = Read(*stream);
  int64_t total = 0;
  int finished = 0;
  for (const GenerateEvent& event : outcome.events) {
    total += static_cast<int64_t>(event.token_ids.size());
    EXPECT_EQ(event.completion_tokens, total);
    EXPECT_EQ(event.sampling.seed, 1u);
    finished += event.finished ? 1 : 0;
  }
  EXPECT_EQ(finished, 1);
  EXPECT_EQ(total, 9);
}

TEST_F(LeadTest, GivesBackEverythingWithinAStepOfACancel) {
  MakeLead();
  auto cancelled = Submit(Request({1, 2, 3}, 50));
  auto other = Submit(Request({4, 5}, 10));
  for (int step = 0; step < 4; ++step) lead_->RunOneStep();
  cancelled->Cancel();
  lead_->RunOneStep();
  EXPECT_EQ(lead_->usage().running_sessions, 1);
  EXPECT_EQ(rows_.num_sessions(), 1u);
  const Outcome outcome = Read(*cancelled);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(outcome.token_ids.size(), 4u);
  RunAll();
  EXPECT_EQ(Read(*other).token_ids.size(), 10u);
  ExpectNothingHeld();
  EXPECT_EQ(lead_->counters().cancelled, 1);
}

TEST_F(LeadTest, TreatsAReaderThatIsGoneAsACancel) {
  MakeLead();
  Submit(Request({1, 2, 3}, 50)).reset();
  RunAll();
  ExpectNothingHeld();
  EXPECT_EQ(lead_->counters().cancelled, 1);
}

TEST_F(LeadTest, EndsARequestAtItsDeadline) {
  MakeLead();
  GenerateRequest request = Request({1, 2, 3}, 50);
  request.deadline = absl::Seconds(2);
  auto stream = Submit(request);
  lead_->RunOneStep();
  clock_.Advance(absl::Seconds(2));
  RunAll();
  EXPECT_EQ(Read(*stream).status.code(), absl::StatusCode::kDeadlineExceeded);
  ExpectNothingHeld();
}

TEST_F(LeadTest, PausesForASlowReaderAndEndsOneThatNeverReads) {
  const Outcome expected = RunAlone(Request({1, 2, 3}, 10));
  options_.max_queued_events = 3;
  MakeLead();
  auto slow = Submit(Request({1, 2, 3}, 10));
  auto never = Submit(Request({4, 5}, 40));
  RunAll();
  EXPECT_EQ(lead_->usage().running_sessions, 2);
  const size_t steps = rows_.steps.size();
  EXPECT_LE(steps, 4u);
  // Read as it comes: the answer is whole.
  std::vector<int64_t> token_ids;
  while (!slow->ended()) {
    while (auto event = slow->Next(absl::ZeroDuration())) {
      token_ids.insert(token_ids.end(), event->token_ids.begin(), event->token_ids.end());
    }
    lead_->RunOneStep();
  }
  EXPECT_EQ(token_ids, expected.token_ids);
  clock_.Advance(options_.max_pause + absl::Seconds(1));
  RunAll();
  EXPECT_EQ(Read(*never).status.code(), absl::StatusCode::kResourceExhausted);
  ExpectNothingHeld();
}

TEST_F(LeadTest, FailsOnlyTheRequestWhoseValuesAreNotFinite) {
  const Outcome expected = RunAlone(Request({1, 2, 3}, 12));
  rows_.poison_token = 50;
  MakeLead();
  auto bad = Submit(Request({9, 50, 9}, 12));
  auto good = Submit(Request({1, 2, 3}, 12));
  RunAll();
  const Outcome failed = Read(*bad);
  EXPECT_EQ(failed.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(failed.status.message()), HasSubstr("position 1"));
  const Outcome outcome = Read(*good);
  // The good one may itself draw token 50 later; up to there it is undisturbed.
  for (size_t index = 0; index < outcome.token_ids.size(); ++index) {
    EXPECT_EQ(outcome.token_ids[index], expected.token_ids[index]);
  }
  EXPECT_GE(outcome.token_ids.size(), 1u);
  ExpectNothingHeld();
}

TEST_F(LeadTest, FailsAloneWhoCausesAStepToFail) {
  const Outcome expected = RunAlone(Request({1, 2, 3}, 12));
  MakeLead();
  rows_.before_step = [](const StepRequest& request) {
    for (const int32_t token : request.token_ids) {
      if (token == 96) return absl::InternalError("this token breaks a step");
    }
    return absl::OkStatus();
  };
  auto bad = Submit(Request({96}, 4));
  auto good = Submit(Request({1, 2, 3}, 12));
  RunAll();
  EXPECT_EQ(Read(*bad).status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Read(*good).token_ids, expected.token_ids);
  ExpectNothingHeld();
}

TEST_F(LeadTest, RetriesAStepThatMayWorkLater) {
  const Outcome expected = RunAlone(Request({1, 2, 3}, 6));
  MakeLead();
  int failures = 2;
  std::vector<uint64_t> attempts;
  rows_.before_step = [&](const StepRequest& request) {
    attempts.push_back(request.plan.attempt);
    return failures-- > 0 ? absl::UnavailableError("a service is gone") : absl::OkStatus();
  };
  auto stream = Submit(Request({1, 2, 3}, 6));
  RunAll();
  EXPECT_EQ(Read(*stream).token_ids, expected.token_ids);
  EXPECT_THAT(std::vector<uint64_t>(attempts.begin(), attempts.begin() + 4),
              ElementsAre(0, 1, 2, 0));
  EXPECT_EQ(lead_->counters().retried_steps, 2);
}

TEST_F(LeadTest, WaitsForAMissingServiceAndGoesOnWhereItWas) {
  const Outcome expected = RunAlone(Request({1, 2, 3}, 6));
  MakeLead();
  auto stream = Submit(Request({1, 2, 3}, 6));
  ASSERT_TRUE(lead_->RunOneStep());
  bool missing = true;
  rows_.before_step = [&](const StepRequest&) {
    return missing ? absl::UnavailableError("layer 1: no usable service has expert 3")
                   : absl::OkStatus();
  };
  rows_.wait_until_usable = [&](absl::Duration timeout) {
    clock_.Advance(timeout);
    return !missing;
  };
  while (clock_.Now() < absl::Seconds(9)) ASSERT_TRUE(lead_->RunOneStep());
  EXPECT_FALSE(stream->ended());
  missing = false;
  RunAll();
  EXPECT_EQ(Read(*stream).token_ids, expected.token_ids);
  ExpectNothingHeld();
}

TEST_F(LeadTest, FailsWhoNeedsWhatStaysMissingAfterOneWaitForAll) {
  const Outcome expected = RunAlone(Request({1, 2, 3}, 12));
  MakeLead();
  rows_.before_step = [](const StepRequest& request) {
    for (const int32_t token : request.token_ids) {
      if (token == 96) return absl::UnavailableError("layer 1: no usable service has expert 3");
    }
    return absl::OkStatus();
  };
  rows_.wait_until_usable = [&](absl::Duration timeout) {
    clock_.Advance(timeout);
    return false;
  };
  std::vector<std::shared_ptr<GenerateStream>> bad;
  for (int i = 0; i < 3; ++i) bad.push_back(Submit(Request({96, i + 1}, 4)));
  auto good = Submit(Request({1, 2, 3}, 12));
  RunAll();
  for (auto& stream : bad) {
    EXPECT_THAT(std::string(Read(*stream).status.message()), HasSubstr("expert 3"));
  }
  EXPECT_EQ(Read(*good).token_ids, expected.token_ids);
  EXPECT_GE(clock_.Now(), options_.max_outage);
  EXPECT_LT(clock_.Now(), options_.max_outage + absl::Seconds(1));
  ExpectNothingHeld();
}

TEST_F(LeadTest, RunsSessionsAgainThatLostTheirKvAndNoOthers) {
  const Outcome expected = RunAlone(Request({1, 2, 3}, 8));
  const Outcome other_expected = RunAlone(Request({7, 8}, 8));
  MakeLead();
  auto stream = Submit(Request({1, 2, 3}, 8));
  auto other = Submit(Request({7, 8}, 8));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(lead_->RunOneStep());
  ASSERT_EQ(rows_.num_sessions(), 2u);
  bool fails = true;
  rows_.before_step = [&](const StepRequest& request) {
    if (!fails) return absl::OkStatus();
    rows_.lost = {request.plan.sessions[0].session};
    fails = false;
    return absl::UnavailableError("attention rank 1 died");
  };
  const size_t steps_before = rows_.steps.size();
  RunAll();
  EXPECT_EQ(Read(*stream).token_ids, expected.token_ids);
  EXPECT_EQ(Read(*other).token_ids, other_expected.token_ids);
  // The next step has the first session from its start and the other where it was.
  const StepPlan& plan = rows_.steps[steps_before].plan;
  ASSERT_EQ(plan.sessions.size(), 2u);
  int64_t from_start = 0;
  for (const SessionRows& rows : plan.sessions) from_start += rows.position_begin == 0 ? 1 : 0;
  EXPECT_EQ(from_start, 1);
  EXPECT_EQ(lead_->counters().failed, 0);
  ExpectNothingHeld();
}

TEST_F(LeadTest, EndsACancelledRequestWhileAServiceIsMissing) {
  MakeLead();
  rows_.before_step = [](const StepRequest&) { return absl::UnavailableError("gone"); };
  rows_.wait_until_usable = [](absl::Duration) { return false; };
  auto stream = Submit(Request({1, 2, 3}, 12));
  ASSERT_TRUE(lead_->RunOneStep());
  stream->Cancel();
  EXPECT_FALSE(lead_->RunOneStep());
  EXPECT_EQ(Read(*stream).last.finish_reason, FinishReason::kAbort);
  ExpectNothingHeld();
}

TEST_F(LeadTest, QueuesWhatDoesNotFitNowAndRefusesWhatNeverWill) {
  FakeRows rows(97, KvPool{4, 8, 0});  // 32 positions
  Lead lead(options_, &rows, &executor_, nullptr, clock_);
  EXPECT_EQ(lead.Submit(Request(std::vector<int64_t>(40, 1), 1)).status().code(),
            absl::StatusCode::kResourceExhausted);
  std::vector<std::shared_ptr<GenerateStream>> streams;
  for (int64_t id = 0; id < 10; ++id) streams.push_back(*lead.Submit(Request({id, 2, 3, 4, 5}, 8)));
  while (lead.RunOneStep()) {
    EXPECT_LE(lead.usage().reserved_kv_tokens, 32);
  }
  for (auto& stream : streams) EXPECT_EQ(Read(*stream).token_ids.size(), 8u);
  EXPECT_EQ(lead.usage().reserved_kv_tokens, 0);
}

TEST_F(LeadTest, RefusesMoreThanItsQueueHolds) {
  options_.max_queued_requests = 2;
  MakeLead();
  auto first = Submit(Request({1}, 2));
  auto second = Submit(Request({2}, 2));
  EXPECT_EQ(lead_->Submit(Request({3}, 2)).status().code(), absl::StatusCode::kResourceExhausted);
  RunAll();
  EXPECT_TRUE(lead_->Submit(Request({3}, 2)).ok());
}

TEST_F(LeadTest, ARequestThatIsAskedAgainIsRunOnceAndToldTwice) {
  MakeLead();
  GenerateRequest request = Request({1, 2}, 3);
  request.request_id = "x";
  auto first = Submit(request);
  request.deadline = absl::Seconds(7);
  request.priority = 3;
  auto second = Submit(request);
  GenerateRequest other = request;
  other.token_ids = {1, 3};
  const auto refused = lead_->Submit(other).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(refused.message(), "request_id 'x' is running and asks otherwise");
  // Its first reader goes; the second one wants the answer.
  first->Cancel();
  RunAll();
  const auto answer = Read(*second);
  EXPECT_EQ(answer.token_ids.size(), 3u);
  EXPECT_EQ(lead_->counters().requests, 2);
  EXPECT_EQ(lead_->counters().rejected, 1);
  EXPECT_EQ(lead_->counters().finished, 1);
  EXPECT_EQ(lead_->counters().cancelled, 0);
  EXPECT_EQ(lead_->usage().reserved_kv_tokens, 0);
  EXPECT_TRUE(lead_->Submit(request).ok());
}

TEST_F(LeadTest, ARequestEndsWhenAllWhoAskedForItHaveGone) {
  MakeLead();
  GenerateRequest request = Request({1, 2}, 60);
  request.request_id = "x";
  auto first = Submit(request), second = Submit(request);
  for (int i = 0; i < 3; ++i) lead_->RunOneStep();
  first->Cancel();
  lead_->RunOneStep();
  EXPECT_EQ(lead_->usage().running_sessions, 1);
  second->Cancel();
  lead_->RunOneStep();
  EXPECT_EQ(lead_->usage().running_sessions, 0);
  EXPECT_EQ(lead_->counters().cancelled, 1);
  EXPECT_EQ(lead_->usage().reserved_kv_tokens, 0);
}

TEST_F(LeadTest, RunsHigherPriorityFirst) {
  options_.max_running_sessions = 1;
  MakeLead();
  GenerateRequest urgent = Request({3}, 1);
  urgent.priority = 1;
  auto first = Submit(Request({1}, 1));
  auto second = Submit(Request({2}, 1));
  auto third = Submit(urgent);
  RunAll();
  ASSERT_EQ(rows_.steps.size(), 3u);
  EXPECT_EQ(rows_.steps[0].token_ids[0], 3);
  EXPECT_EQ(rows_.steps[1].token_ids[0], 1);
}

TEST_F(LeadTest, EndsEveryRequestWhenItShutsDown) {
  MakeLead();
  auto running = Submit(Request({1, 2}, 50));
  lead_->RunOneStep();
  auto queued = Submit(Request({3, 4}, 50));
  lead_->Shutdown();
  lead_->RunOneStep();
  EXPECT_EQ(Read(*running).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Read(*queued).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(lead_->Submit(Request({1}, 1)).status().code(), absl::StatusCode::kUnavailable);
  ExpectNothingHeld();
}

TEST_F(LeadTest, EndsOpenStreamsWhenItIsDestroyed) {
  MakeLead();
  auto stream = Submit(Request({1, 2}, 50));
  lead_->RunOneStep();
  lead_.reset();
  EXPECT_EQ(Read(*stream).status.code(), absl::StatusCode::kUnavailable);
  stream->Cancel();  // harmless
}

TEST_F(LeadTest, ReturnsItsGaugesToZeroAfterEveryKindOfEnd) {
  MakeLead();
  std::vector<std::shared_ptr<GenerateStream>> streams;
  for (int64_t id = 0; id < 40; ++id) {
    GenerateRequest request = Request({id % 90, 2, 3}, 1 + id % 20);
    if (id % 4 == 1) request.deadline = absl::Milliseconds(1);
    streams.push_back(Submit(request));
    if (id % 4 == 2) streams.back()->Cancel();
    if (id % 4 == 3) {
      EXPECT_FALSE(lead_->Submit(Request({200}, 1)).ok());
    }
    lead_->RunOneStep();
    clock_.Advance(absl::Milliseconds(1));
  }
  RunAll();
  for (auto& stream : streams) {
    Read(*stream);
    EXPECT_TRUE(stream->ended());
  }
  ExpectNothingHeld();
  const LeadCounters counters = lead_->counters();
  EXPECT_EQ(counters.requests, 50);
  EXPECT_EQ(counters.rejected, 10);
  EXPECT_EQ(counters.finished + counters.cancelled + counters.failed, 40);
}

TEST_F(LeadTest, GivesLogprobsOfTheChosenTokenAndTheBest) {
  GenerateRequest request = Request({1, 2, 3}, 3);
  request.logprobs = 2;
  MakeLead();
  auto stream = Submit(request);
  RunAll();
  const Outcome outcome = Read(*stream);
  int64_t positions = 0;
  for (const GenerateEvent& event : outcome.events) {
    for (size_t index = 0; index < event.logprobs.size(); ++index) {
      const PositionLogprobs& position = event.logprobs[index];
      EXPECT_EQ(position.chosen.token_id, event.token_ids[index]);
      ASSERT_EQ(position.top.size(), 2u);
      EXPECT_GE(position.top[0].logprob, position.top[1].logprob);
      EXPECT_LE(position.chosen.logprob, position.top[0].logprob);
      EXPECT_LE(position.top[0].logprob, 0);
      ++positions;
    }
  }
  EXPECT_EQ(positions, 3);
}

TEST_F(LeadTest, NotesHowRequestsGo) {
  RequestLog log(4, clock_);
  MakeLead();
  lead_->SetLog(&log);
  GenerateRequest request = Request({1, 2, 3}, 4);
  request.request_id = "one";
  const auto stream = Submit(request);
  EXPECT_EQ(log.Explain("one")->state, RequestState::kQueued);
  lead_->RunOneStep();
  EXPECT_EQ(log.Explain("one")->state, RequestState::kRunning);
  RunAll();
  const Outcome outcome = Read(*stream);
  const Explanation explanation = *log.Explain("one");
  EXPECT_EQ(explanation.state, RequestState::kFinished);
  EXPECT_EQ(explanation.last.logits_hash, outcome.last.logits_hash);
  EXPECT_EQ(explanation.last.completion_tokens, 4);
  EXPECT_EQ(explanation.last.finish_reason, FinishReason::kLength);
}

TEST_F(LeadTest, KnowsWhyARequestFailed) {
  RequestLog log(4, clock_);
  MakeLead();
  lead_->SetLog(&log);
  rows_.poison_token = 5;
  GenerateRequest request = Request({1, 5, 3}, 4);
  request.request_id = "bad";
  const auto stream = Submit(request);
  RunAll();
  EXPECT_EQ(log.Explain("bad")->state, RequestState::kFailed);
  EXPECT_EQ(log.Explain("bad")->failure, stream->status());
}

TEST_F(LeadTest, RunsABodyBetweenTwoStepsWithStepsOfItsOwn) {
  MakeLead();
  const auto stream = Submit(Request({1, 2, 3}, 3));
  ASSERT_TRUE(lead_->RunOneStep());
  uint64_t taken = 0;
  absl::Status status;
  std::atomic<bool> ended{false};
  std::thread caller([&] {
    status = lead_->RunBetweenSteps([&taken](uint64_t* next_step) { taken = (*next_step)++; },
                                    absl::InfiniteDuration());
    ended = true;
  });
  while (!ended) lead_->RunOneStep();
  caller.join();
  EXPECT_TRUE(status.ok());
  for (const StepRequest& step : rows_.steps) EXPECT_NE(step.plan.step, taken);
  RunAll();
  EXPECT_EQ(Read(*stream).token_ids, RunAlone(Request({1, 2, 3}, 3)).token_ids);
}

}  // namespace
}  // namespace moebius
