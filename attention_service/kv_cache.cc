// SPDX-License-Identifier: Apache-2.0
#include "attention_service/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
#include "moebius/base/huge_pages.h"
#include "moebius/base/status.h"

namespace moebius {

KvCache::KvCache(const KvLayout& layout, const SpanGeometry& geometry, int64_t num_layers,
                 int64_t num_blocks, Shard shard)
    : layout_(layout),
      geometry_(geometry),
      shard_(shard),
      num_layers_(num_layers),
      block_tokens_(layout.shape().key_block),
      num_blocks_(num_blocks) {}

KvCache::Session KvCache::NewSession(const SessionRows& rows) const {
  const int32_t num_ranks = shard_.num_ranks;
  return {.spans = SessionSpans(geometry_, rows.prompt_length),
          .first_rank = rows.first_rank,
          .owner = (shard_.rank + num_ranks - rows.first_rank % num_ranks) % num_ranks};
}

int64_t KvCache::NumSlots(const Session& session, int64_t length) const {
  return geometry_.is_canonical() ? length : session.spans.NumPositionsOf(session.owner, length);
}

bool KvCache::OwnsBlock(const Session& session, int64_t block) const {
  return shard_.is_alone() || !geometry_.is_canonical() ||
         SpanOwner(block / geometry_.blocks_per_span(), session.first_rank, shard_.num_ranks) ==
             shard_.rank;
}

int64_t KvCache::NumOwnedBlocks(const Session& session, int64_t begin, int64_t end) const {
  if (shard_.is_alone()) return std::max<int64_t>(0, end - begin);
  int64_t count = 0;
  for (int64_t block = begin; block < end; ++block) count += OwnsBlock(session, block) ? 1 : 0;
  return count;
}

// Whether a position of [length, end) is kept here.
bool KvCache::OwnsAny(const Session& session, int64_t end) const {
  if (!geometry_.is_canonical()) return NumSlots(session, end) > NumSlots(session, session.length);
  const int64_t first = geometry_.NumBlocks(session.length + 1) - 1;
  return NumOwnedBlocks(session, first, geometry_.NumBlocks(end)) > 0;
}

absl::Status KvCache::CheckSession(const SessionRows& rows, const Session& session) const {
  if (session.length > 0 && session.first_rank != rows.first_rank) {
    return absl::InvalidArgumentError(absl::StrCat("session ", rows.session.value(),
                                                   " began at rank ", session.first_rank,
                                                   ", the step says ", rows.first_rank));
  }
  if (session.spans != SessionSpans(geometry_, rows.prompt_length)) {
    return absl::InvalidArgumentError(absl::StrCat("session ", rows.session.value(),
                                                   " began with another prompt length than ",
                                                   rows.prompt_length));
  }
  if (rows.position_begin > session.length && OwnsAny(session, rows.position_begin)) {
    return absl::FailedPreconditionError(
        absl::StrCat("session ", rows.session.value(), " has ", session.length,
                     " positions, the step starts at ", rows.position_begin));
  }
  const int64_t end_blocks = NumBlocks(session, rows.position_end());
  const int64_t new_blocks =
      NumOwnedBlocks(session, static_cast<int64_t>(session.blocks.size()), end_blocks);
  if (session.owned_blocks + new_blocks > num_blocks_) {
    const int64_t here = shard_.is_alone() ? rows.position_end()
                                           : (session.owned_blocks + new_blocks) * block_tokens_;
    return absl::ResourceExhaustedError(absl::StrCat("session ", rows.session.value(), " needs ",
                                                     here, " KV slots, pool has ",
                                                     num_blocks_ * block_tokens_));
  }
  return absl::OkStatus();
}

absl::Status KvCache::CheckRoom(const StepPlan& plan) const {
  int64_t needed_blocks = 0;
  for (const SessionRows& rows : plan.sessions) {
    if (rows.num_rows == 0) continue;
    const auto found = sessions_.find(rows.session);
    const Session new_session = NewSession(rows);
    const Session& session = found == sessions_.end() ? new_session : found->second;
    MOEBIUS_RETURN_IF_ERROR(CheckSession(rows, session));
    needed_blocks += NumOwnedBlocks(session, static_cast<int64_t>(session.blocks.size()),
                                    NumBlocks(session, rows.position_end()));
  }
  const int64_t free_blocks = num_blocks_ - used_blocks_.load(std::memory_order_relaxed);
  if (needed_blocks > free_blocks) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "step needs ", needed_blocks * block_tokens_, " more KV slots, ",
        free_blocks * block_tokens_, " of ", num_blocks_ * block_tokens_, " are free"));
  }
  return absl::OkStatus();
}

absl::Status KvCache::BeginStep(const StepPlan& plan) {
  MOEBIUS_CHECK(!open_);
  MOEBIUS_RETURN_IF_ERROR(CheckRoom(plan));
  step_.clear();
  for (const SessionRows& rows : plan.sessions) {
    // A session without rows takes no part and is not created.
    if (rows.num_rows == 0) {
      step_.push_back({.id = rows.session});
      continue;
    }
    const auto [entry, is_new] = sessions_.try_emplace(rows.session, NewSession(rows));
    Session& session = entry->second;
    const int64_t end_blocks = NumBlocks(session, rows.position_end());
    for (auto block = static_cast<int64_t>(session.blocks.size()); block < end_blocks; ++block) {
      const bool is_owned = OwnsBlock(session, block);
      session.blocks.push_back(is_owned ? TakeBlock() : Buffer());
      if (is_owned) ++session.owned_blocks;
    }
    step_.push_back({.id = rows.session,
                     .session = &session,
                     .position_end = rows.position_end(),
                     .is_new = is_new});
  }
  num_sessions_.store(static_cast<int64_t>(sessions_.size()), std::memory_order_relaxed);
  open_ = true;
  return absl::OkStatus();
}

void KvCache::CommitStep() {
  MOEBIUS_CHECK(open_);
  for (const StepSession& entry : step_) {
    if (entry.session == nullptr) continue;
    entry.session->length = std::max(entry.session->length, entry.position_end);
  }
  step_.clear();
  open_ = false;
}

void KvCache::AbortStep() {
  if (!open_) return;
  for (const StepSession& entry : step_) {
    if (entry.session == nullptr) continue;
    Session& session = *entry.session;
    const int64_t slots = NumSlots(session, session.length);
    ReturnBlocks(session, static_cast<size_t>(geometry_.NumBlocks(slots)));
    // What the step wrote behind the committed positions of the last block must not be met again.
    if (slots % block_tokens_ != 0 && entry.position_end > session.length &&
        OwnsBlock(session, slots / block_tokens_)) {
      Bf16* block = static_cast<Bf16*>(session.blocks.back().data());
      for (int64_t layer = 0; layer < num_layers_; ++layer) {
        layout_.ClearFrom(slots % block_tokens_, block + layer * layout_.layer_elements());
      }
    }
    if (entry.is_new) sessions_.erase(entry.id);
  }
  num_sessions_.store(static_cast<int64_t>(sessions_.size()), std::memory_order_relaxed);
  step_.clear();
  open_ = false;
}

void KvCache::EndSession(SessionId session) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  for (const StepSession& entry : step_) {
    if (entry.session != &found->second) continue;
    AbortStep();
    break;
  }
  const auto still_there = sessions_.find(session);
  if (still_there == sessions_.end()) return;
  ReturnBlocks(still_there->second, 0);
  sessions_.erase(still_there);
  num_sessions_.store(static_cast<int64_t>(sessions_.size()), std::memory_order_relaxed);
}

int64_t KvCache::SessionLength(SessionId session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? 0 : found->second.length;
}

KvUsage KvCache::usage() const {
  return {.block_tokens = block_tokens_,
          .block_bytes = BlockBytes(layout_, num_layers_),
          .num_blocks = num_blocks_,
          .used_blocks = used_blocks_.load(std::memory_order_relaxed),
          .num_sessions = num_sessions_.load(std::memory_order_relaxed)};
}

// Blocks smaller than a huge page come from the system by the page: a row that reads many of them
// would else look up a small page for each 4 KiB.
void KvCache::TakeMemory() {
  const int64_t block_bytes = BlockBytes(layout_, num_layers_);
  const int64_t in_page = std::max<int64_t>(1, kHugePageBytes / block_bytes);
  const int64_t count = std::min(in_page, num_blocks_ - num_taken_);
  MOEBIUS_CHECK_GT(count, 0);
  num_taken_ += count;
  // To the page's end, where it holds no whole block more.
  memory_.emplace_back(static_cast<size_t>(count == in_page ? std::max(kHugePageBytes, block_bytes)
                                                            : count * block_bytes));
  auto* const data = static_cast<uint8_t*>(memory_.back().data());
  for (int64_t index = count - 1; index >= 0; --index) {
    free_.push_back(Buffer::Borrow(
        absl::MakeSpan(data + index * block_bytes, static_cast<size_t>(block_bytes))));
  }
}

Buffer KvCache::TakeBlock() {
  used_blocks_.fetch_add(1, std::memory_order_relaxed);
  if (free_.empty()) TakeMemory();
  Buffer block = std::move(free_.back());
  free_.pop_back();
  std::memset(block.data(), 0, block.size_bytes());
  return block;
}

void KvCache::ReturnBlocks(Session& session, size_t keep) {
  while (session.blocks.size() > keep) {
    if (session.blocks.back().data() != nullptr) {
      free_.push_back(std::move(session.blocks.back()));
      --session.owned_blocks;
      used_blocks_.fetch_sub(1, std::memory_order_relaxed);
    }
    session.blocks.pop_back();
  }
}

}  // namespace moebius
