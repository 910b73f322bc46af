// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "moebius/model/model_config.h"

namespace moebius {

/// Turns the ids of one answer into text as they come. Not thread-safe; one per answer.
class StreamingDecoder {
 public:
  virtual ~StreamingDecoder() = default;
  /// The text that is certain after this id: whole UTF-8 characters only. A byte that cannot
  /// continue or begin a character becomes U+FFFD; special tokens give no text.
  virtual std::string Append(int64_t token_id) = 0;
  /// What was held back at the end: an unfinished character becomes one U+FFFD.
  virtual std::string Finish() = 0;
};

/// Text to ids and back. Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// "bytes".
  virtual absl::string_view name() const = 0;
  /// The ids of `text` without a beginning-of-text id. Never fails for any bytes.
  virtual std::vector<int64_t> Encode(absl::string_view text) const = 0;
  virtual std::unique_ptr<StreamingDecoder> MakeDecoder() const = 0;
  /// The bytes that one token adds to the text, perhaps a part of a character; none for a special
  /// token.
  virtual std::string TokenBytes(int64_t token_id) const = 0;
  /// What one token looks like in tables: printable, escaped ("\\n", "\\xC3", "⟨bos⟩"), never
  /// empty.
  virtual std::string Describe(int64_t token_id) const = 0;
  /// The id that begins a text, where the model has one.
  virtual std::optional<int64_t> bos_token_id() const = 0;

  /// All of `token_ids` at once.
  std::string Decode(absl::Span<const int64_t> token_ids) const;
};

/// Ids 0 to 255 are bytes; what the model has beyond is special and gives no text.
std::unique_ptr<Tokenizer> MakeByteTokenizer(const ModelConfig& config);

}  // namespace moebius
