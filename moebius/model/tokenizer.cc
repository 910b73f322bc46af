// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/tokenizer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "moebius/base/utf8.h"

namespace moebius {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

class ByteDecoder final : public StreamingDecoder {
 public:
  std::string Append(int64_t token_id) override {
    // A special token ends whatever character was open.
    if (token_id < 0 || token_id > 255) return Finish();
    const uint8_t byte = static_cast<uint8_t>(token_id);
    std::string out;
    if (!pending_.empty() && !Continues(byte)) out = Finish();
    pending_.push_back(static_cast<char>(byte));
    const int length = ClassifyUtf8(static_cast<uint8_t>(pending_[0])).length;
    if (length == 0) return out + Finish();
    if (static_cast<int>(pending_.size()) == length) {
      out += pending_;
      pending_.clear();
    }
    return out;
  }

  std::string Finish() override {
    if (pending_.empty()) return "";
    pending_.clear();
    return kReplacement;
  }

 private:
  bool Continues(uint8_t byte) const {
    if (pending_.size() > 1) return byte >= 0x80 && byte <= 0xBF;
    const Utf8FirstByte first = ClassifyUtf8(static_cast<uint8_t>(pending_[0]));
    return byte >= first.second_low && byte <= first.second_high;
  }

  std::string pending_;  // the beginning of a well-formed character
};

class ByteTokenizer final : public Tokenizer {
 public:
  explicit ByteTokenizer(const ModelConfig& config)
      : bos_(config.bos_token_id), eos_(config.eos_token_ids) {}

  absl::string_view name() const override { return "bytes"; }

  std::vector<int64_t> Encode(absl::string_view text) const override {
    std::vector<int64_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }

  std::string TokenBytes(int64_t token_id) const override {
    if (token_id < 0 || token_id > 255) return "";
    return std::string(1, static_cast<char>(token_id));
  }

  std::unique_ptr<StreamingDecoder> MakeDecoder() const override {
    return std::make_unique<ByteDecoder>();
  }

  std::string Describe(int64_t token_id) const override {
    if (bos_ == token_id) return "⟨bos⟩";
    for (const int64_t eos : eos_) {
      if (eos == token_id) return "⟨eos⟩";
    }
    if (token_id < 0 || token_id > 255) return absl::StrCat("⟨", token_id, "⟩");
    if (token_id == '\n') return "\\n";
    if (token_id == '\t') return "\\t";
    if (token_id == '\r') return "\\r";
    if (token_id == '\\') return "\\\\";
    if (token_id == ' ') return "␠";
    if (token_id < 0x20 || token_id >= 0x7F) return absl::StrFormat("\\x%02X", token_id);
    return std::string(1, static_cast<char>(token_id));
  }

  std::optional<int64_t> bos_token_id() const override { return bos_; }

 private:
  std::optional<int64_t> bos_;
  std::vector<int64_t> eos_;
};

}  // namespace

std::string Tokenizer::Decode(absl::Span<const int64_t> token_ids) const {
  const std::unique_ptr<StreamingDecoder> decoder = MakeDecoder();
  std::string text;
  for (const int64_t id : token_ids) text += decoder->Append(id);
  return text + decoder->Finish();
}

std::unique_ptr<Tokenizer> MakeByteTokenizer(const ModelConfig& config) {
  return std::make_unique<ByteTokenizer>(config);
}

}  // namespace moebius
