// SPDX-License-Identifier: Apache-2.0
#include "router_service/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "moebius/base/check.h"

namespace moebius {
namespace {

absl::Status CheckId(const char* field, int64_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s has token %d; the vocabulary is [0, %d)", field, id, vocab_size));
}

}  // namespace

absl::Status ValidateStopRules(const StopRules& rules, int64_t vocab_size) {
  for (const int64_t id : rules.eos_token_ids) {
    if (absl::Status status = CheckId("eos_token_ids", id, vocab_size); !status.ok()) return status;
  }
  for (const std::vector<int64_t>& sequence : rules.token_sequences) {
    if (sequence.empty()) {
      return absl::InvalidArgumentError("stop_token_ids has an empty sequence");
    }
    for (const int64_t id : sequence) {
      if (absl::Status status = CheckId("stop_token_ids", id, vocab_size); !status.ok()) {
        return status;
      }
    }
  }
  for (const std::string& text : rules.strings) {
    if (text.empty()) return absl::InvalidArgumentError("stop has an empty string");
  }
  return absl::OkStatus();
}

StopMatcher::Pattern StopMatcher::MakePattern(std::vector<int64_t> symbols, std::string name) {
  Pattern pattern;
  pattern.symbols = std::move(symbols);
  pattern.name = std::move(name);
  // failure[n]: length of the longest proper prefix that ends the first n symbols.
  pattern.failure.assign(pattern.symbols.size() + 1, 0);
  for (size_t n = 1, length = 0; n < pattern.symbols.size(); ++n) {
    while (length > 0 && pattern.symbols[n] != pattern.symbols[length]) {
      length = pattern.failure[length];
    }
    if (pattern.symbols[n] == pattern.symbols[length]) ++length;
    pattern.failure[n + 1] = length;
  }
  return pattern;
}

bool StopMatcher::Pattern::Advance(int64_t symbol) {
  while (matched > 0 && symbols[matched] != symbol) matched = failure[matched];
  if (symbols[matched] == symbol) ++matched;
  return matched == symbols.size();
}

StopMatcher::StopMatcher(StopRules rules) : eos_token_ids_(std::move(rules.eos_token_ids)) {
  for (std::vector<int64_t>& sequence : rules.token_sequences) {
    std::string name =
        absl::StrCat(sequence.size() > 1 ? "tokens " : "token ", absl::StrJoin(sequence, " "));
    token_patterns_.push_back(MakePattern(std::move(sequence), std::move(name)));
  }
  for (std::string& text : rules.strings) {
    std::vector<int64_t> bytes;
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    byte_patterns_.push_back(MakePattern(std::move(bytes), std::move(text)));
  }
  // Of the stops that are complete at the same place the longest comes first.
  for (std::vector<Pattern>* patterns : {&token_patterns_, &byte_patterns_}) {
    std::stable_sort(patterns->begin(), patterns->end(), [](const Pattern& a, const Pattern& b) {
      return a.symbols.size() > b.symbols.size();
    });
  }
}

void StopMatcher::Push(int64_t token_id, absl::string_view bytes) {
  MOEBIUS_CHECK(!stopped_);
  ++num_pushed_;
  if (std::find(eos_token_ids_.begin(), eos_token_ids_.end(), token_id) != eos_token_ids_.end()) {
    Stop(num_pushed_, absl::StrCat("eos ", token_id));
    return;
  }
  if (MatchTokens(token_id) || MatchBytes(bytes)) return;
  Release();
}

bool StopMatcher::MatchTokens(int64_t token_id) {
  for (Pattern& pattern : token_patterns_) {
    if (!pattern.Advance(token_id)) continue;
    Stop(num_pushed_ - static_cast<int64_t>(pattern.symbols.size()), pattern.name);
    return true;
  }
  return false;
}

bool StopMatcher::MatchBytes(absl::string_view bytes) {
  if (byte_patterns_.empty()) {
    num_bytes_ += static_cast<int64_t>(bytes.size());
    held_ends_.push_back(num_bytes_);
    return false;
  }
  held_ends_.push_back(num_bytes_ + static_cast<int64_t>(bytes.size()));
  for (const char byte : bytes) {
    ++num_bytes_;
    for (Pattern& pattern : byte_patterns_) {
      if (!pattern.Advance(static_cast<unsigned char>(byte))) continue;
      // The answer keeps the tokens that end where the stop begins, or before.
      const int64_t stop_begin = num_bytes_ - static_cast<int64_t>(pattern.symbols.size());
      int64_t answer_length = num_released_;
      for (const int64_t end : held_ends_) {
        if (end > stop_begin) break;
        ++answer_length;
      }
      Stop(answer_length, pattern.name);
      return true;
    }
  }
  return false;
}

void StopMatcher::Stop(int64_t answer_length, std::string name) {
  stopped_ = true;
  matched_stop_ = std::move(name);
  num_released_ = answer_length;
  held_ends_.clear();
}

// Releases the tokens that no incomplete stop can reach back to.
void StopMatcher::Release() {
  size_t open_tokens = 0, open_bytes = 0;
  for (const Pattern& pattern : token_patterns_) {
    open_tokens = std::max(open_tokens, pattern.matched);
  }
  for (const Pattern& pattern : byte_patterns_) open_bytes = std::max(open_bytes, pattern.matched);
  const int64_t first_open_token = num_pushed_ - static_cast<int64_t>(open_tokens);
  const int64_t first_open_byte = num_bytes_ - static_cast<int64_t>(open_bytes);
  while (num_released_ < first_open_token && held_ends_.front() <= first_open_byte) {
    held_ends_.pop_front();
    ++num_released_;
  }
}

void StopMatcher::ReleaseAll() {
  MOEBIUS_CHECK(!stopped_);
  num_released_ = num_pushed_;
  held_ends_.clear();
}

}  // namespace moebius
