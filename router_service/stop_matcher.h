// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moebius {

/// What ends an answer.
struct StopRules {
  std::vector<int64_t> eos_token_ids;  // ends and belongs to the answer; empty under ignore_eos
  std::vector<std::vector<int64_t>> token_sequences;  // each one or more ids
  std::vector<std::string> strings;                   // bytes of the text, each one or more
};

/// INVALID_ARGUMENT for an empty sequence or string, and for ids outside the vocabulary.
absl::Status ValidateStopRules(const StopRules& rules, int64_t vocab_size);

/// Finds where an answer stops, over ids and over the bytes of its text, and says how many of its
/// tokens may already be sent: a token is held back while it could be part of a stop that is not
/// complete yet. Prompt tokens are never pushed and never count.
///
/// Rules:
/// 1. The stop that is complete first wins, byte by byte and token by token, however many bytes a
///    token has. Of those complete at the same place: end marker, then token sequences, then
///    strings; the longest of a kind, then the one listed first.
/// 2. An end marker belongs to the answer. Any other stop does not, nor does a token of which a
///    single byte lies in it or behind it.
/// 3. The answer and the stop do not depend on how tokens are sent.
///
/// Belongs to one request. Not thread-safe.
class StopMatcher {
 public:
  /// The rules must be valid.
  explicit StopMatcher(StopRules rules);

  /// The next generated token and the bytes that it adds to the text (none: a special token).
  /// CHECKs that the answer has not stopped.
  void Push(int64_t token_id, absl::string_view bytes);

  /// Tokens from the start of the answer that may be sent, so far; never decreases. After a stop:
  /// the length of the answer.
  int64_t num_released() const { return num_released_; }
  int64_t num_pushed() const { return num_pushed_; }
  bool stopped() const { return stopped_; }
  /// "eos 257", "token 5", "tokens 5 6", or the stop string itself; empty before a stop.
  const std::string& matched_stop() const { return matched_stop_; }

  /// The answer ends without a stop (its length is reached): what was held back is released.
  void ReleaseAll();

 private:
  // One pattern over a sequence of symbols (ids or bytes), matched as Knuth, Morris and Pratt do.
  struct Pattern {
    std::vector<int64_t> symbols;
    std::vector<size_t> failure;
    size_t matched = 0;
    std::string name;
    bool Advance(int64_t symbol);
  };
  static Pattern MakePattern(std::vector<int64_t> symbols, std::string name);
  bool MatchTokens(int64_t token_id);
  bool MatchBytes(absl::string_view bytes);
  void Stop(int64_t answer_length, std::string name);
  void Release();

  std::vector<int64_t> eos_token_ids_;
  std::vector<Pattern> token_patterns_;
  std::vector<Pattern> byte_patterns_;
  std::deque<int64_t> held_ends_;  // byte position behind each token that is not released
  int64_t num_bytes_ = 0;
  int64_t num_pushed_ = 0;
  int64_t num_released_ = 0;
  bool stopped_ = false;
  std::string matched_stop_;
};

}  // namespace moebius
