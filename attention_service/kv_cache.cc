// SPDX-License-Identifier: Apache-2.0
#include "attention_service/kv_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "moebius/base/check.h"
#include "moebius/base/error.h"
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

int64_t KvCache::NumOwnedBlocks(int64_t begin, int64_t end, int32_t first_rank) const {
  if (shard_.is_alone()) return std::max<int64_t>(0, end - begin);
  int64_t count = 0;
  for (int64_t block = begin; block < end; ++block) count += OwnsBlock(block, first_rank) ? 1 : 0;
  return count;
}

absl::Status KvCache::CheckSession(const SessionRows& rows, const Session& session) const {
  if (session.length > 0 && session.first_rank != rows.first_rank) {
    return absl::InvalidArgumentError(absl::StrCat("session ", rows.session.value(),
                                                   " began at rank ", session.first_rank,
                                                   ", the step says ", rows.first_rank));
  }
  // A rank without spans in between has nothing to miss.
  const int64_t first_missing = geometry_.NumBlocks(session.length + 1) - 1;
  if (rows.position_begin > session.length &&
      NumOwnedBlocks(first_missing, geometry_.NumBlocks(rows.position_begin), rows.first_rank) >
          0) {
    return absl::FailedPreconditionError(
        absl::StrCat("session ", rows.session.value(), " has ", session.length,
                     " positions, the step starts at ", rows.position_begin));
  }
  const int64_t end_blocks = geometry_.NumBlocks(rows.position_end());
  const int64_t new_blocks =
      NumOwnedBlocks(static_cast<int64_t>(session.blocks.size()), end_blocks, rows.first_rank);
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
  static const Session kNewSession;
  int64_t needed_blocks = 0;
  for (const SessionRows& rows : plan.sessions) {
    if (rows.num_rows == 0) continue;
    const auto found = sessions_.find(rows.session);
    const Session& session = found == sessions_.end() ? kNewSession : found->second;
    MOEBIUS_RETURN_IF_ERROR(CheckSession(rows, session));
    needed_blocks += NumOwnedBlocks(static_cast<int64_t>(session.blocks.size()),
                                    geometry_.NumBlocks(rows.position_end()), rows.first_rank);
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
    const auto [entry, is_new] = sessions_.try_emplace(rows.session);
    Session& session = entry->second;
    session.first_rank = rows.first_rank;
    const int64_t end_blocks = geometry_.NumBlocks(rows.position_end());
    for (auto block = static_cast<int64_t>(session.blocks.size()); block < end_blocks; ++block) {
      const bool is_owned = OwnsBlock(block, rows.first_rank);
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
    const size_t keep = static_cast<size_t>((session.length + block_tokens_ - 1) / block_tokens_);
    ReturnBlocks(session, keep);
    // What the step wrote behind the committed positions of the last block must not be met again.
    if (session.length % block_tokens_ != 0 && entry.position_end > session.length &&
        OwnsBlock(session.length / block_tokens_, session.first_rank)) {
      Bf16* block = static_cast<Bf16*>(session.blocks.back().data());
      for (int64_t layer = 0; layer < num_layers_; ++layer) {
        layout_.ClearFrom(session.length % block_tokens_, block + layer * layout_.layer_elements());
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

Buffer KvCache::TakeBlock() {
  used_blocks_.fetch_add(1, std::memory_order_relaxed);
  if (free_.empty()) return Buffer(static_cast<size_t>(BlockBytes(layout_, num_layers_)));
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
