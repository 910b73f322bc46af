// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/frame/frame_header.h"

#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/random.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

FrameLimits SmallLimits() {
  FrameLimits limits;
  limits.max_payload_bytes = 1 << 20;
  limits.max_message_bytes = 8 << 20;
  limits.max_metadata_bytes = 4096;
  limits.max_num_rows = 1 << 16;
  limits.max_row_width = 8192;
  limits.max_layer = 60;
  limits.max_round = 15;
  limits.max_micro_batch = 1;
  return limits;
}

// One row of four bf16 numbers behind 64 bytes of metadata, as docs/wire_format.md describes it.
FrameHeader DocumentedHeader() {
  FrameHeader header;
  header.kind = FrameKind(16);
  header.incarnation = 0x1122334455667788;
  header.term = 3;
  header.step = 42;
  header.epoch = 7;
  header.attempt = 1;
  header.layer = 5;
  header.num_rows = 1;
  header.row_width = 4;
  header.dtype = DType::kBF16;
  header.has_checksum = true;
  header.metadata_bytes = 64;
  header.budget_ms = 250;
  header.payload_bytes = 72;
  header.sequence = 9;
  return header;
}

Payload DocumentedPayload() {
  std::vector<uint8_t> bytes;
  for (uint8_t value = 0; value < 64; ++value) bytes.push_back(value);
  for (const uint8_t value : {0x80, 0x3f, 0x00, 0x40, 0x80, 0xbf, 0x00, 0x3f}) {
    bytes.push_back(value);
  }
  return {SharedBytes::Copy(absl::MakeConstSpan(bytes))};
}

// The bytes of the one ```hex block of the document.
std::string HexOfDocument() {
  std::ifstream file(std::string(MOEBIUS_SOURCE_DIR) + "/docs/wire_format.md");
  std::string line;
  std::string hex;
  bool inside = false;
  while (std::getline(file, line)) {
    if (line == "```hex") {
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      for (const char digit : line.substr(line.find(' '))) {
        if (digit != ' ') hex += digit;
      }
    }
  }
  return absl::HexStringToBytes(hex);
}

absl::StatusOr<FrameHeader> Decode(const EncodedHeader& bytes, const FrameLimits& limits) {
  return DecodeFrameHeader(absl::MakeConstSpan(bytes), limits);
}

TEST(FrameHeaderTest, EncodesTheWorkedExampleOfTheDocument) {
  const std::string expected = HexOfDocument();
  ASSERT_EQ(expected.size(), kFrameHeaderBytes + 72);
  FrameHeader header = DocumentedHeader();
  const Payload payload = DocumentedPayload();
  header.checksum = FrameChecksum(header, HashPayload(payload));
  const EncodedHeader bytes = EncodeFrameHeader(header);
  const std::string encoded(bytes.begin(), bytes.end());
  EXPECT_EQ(absl::BytesToHexString(encoded + std::string(payload[0].view())),
            absl::BytesToHexString(expected));
}

TEST(FrameHeaderTest, DecodesTheWorkedExampleOfTheDocument) {
  const std::string bytes = HexOfDocument();
  ASSERT_GT(bytes.size(), kFrameHeaderBytes);
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  const auto header =
      DecodeFrameHeader(absl::MakeConstSpan(data, kFrameHeaderBytes), SmallLimits());
  ASSERT_TRUE(header.ok()) << header.status();
  const FrameHeader expected = DocumentedHeader();
  EXPECT_EQ(header->kind, expected.kind);
  EXPECT_EQ(header->incarnation, expected.incarnation);
  EXPECT_EQ(header->term, expected.term);
  EXPECT_EQ(header->step, expected.step);
  EXPECT_EQ(header->epoch, expected.epoch);
  EXPECT_EQ(header->attempt, expected.attempt);
  EXPECT_EQ(header->layer, expected.layer);
  EXPECT_EQ(header->num_rows, expected.num_rows);
  EXPECT_EQ(header->row_width, expected.row_width);
  EXPECT_EQ(header->dtype, expected.dtype);
  EXPECT_EQ(header->metadata_bytes, expected.metadata_bytes);
  EXPECT_EQ(header->budget_ms, expected.budget_ms);
  EXPECT_EQ(header->payload_bytes, expected.payload_bytes);
  EXPECT_EQ(header->sequence, expected.sequence);
  const Payload payload = {SharedBytes::Copy(
      absl::MakeConstSpan(data + kFrameHeaderBytes, bytes.size() - kFrameHeaderBytes))};
  EXPECT_TRUE(VerifyPayload(*header, payload).ok());
}

TEST(FrameHeaderTest, RefusesEveryHostileFieldByName) {
  struct Case {
    const char* name;
    std::function<void(FrameHeader&)> change;
    const char* message;
  };
  constexpr uint64_t kMax64 = std::numeric_limits<uint64_t>::max();
  constexpr uint32_t kMax32 = std::numeric_limits<uint32_t>::max();
  const std::vector<Case> cases = {
      {"payload is one byte short", [](auto& h) { h.payload_bytes = 71; }, "payload_bytes is 71"},
      {"payload is one byte long", [](auto& h) { h.payload_bytes = 73; }, "payload_bytes is 73"},
      {"payload near 2^64", [](auto& h) { h.payload_bytes = kMax64; }, "payload_bytes"},
      {"rows wrap 32 bits", [](auto& h) { h.num_rows = 0x40000001; }, "num_rows is 1073741825"},
      {"rows wrap 64 bits", [](auto& h) { h.num_rows = uint64_t{1} << 61; }, "num_rows"},
      {"rows near 2^63", [](auto& h) { h.num_rows = kMax64 >> 1; }, "num_rows"},
      {"no width", [](auto& h) { h.row_width = 0; }, "no width"},
      {"width beyond the limit", [](auto& h) { h.row_width = kMax32; }, "row_width"},
      {"no dtype", [](auto& h) { h.dtype = DType::kUnspecified; }, "no dtype"},
      {"unknown dtype", [](auto& h) { h.dtype = static_cast<DType>(200); }, "dtype 200"},
      {"dtype of files", [](auto& h) { h.dtype = DType::kF8E4M3; }, "dtype 128"},
      {"layer -1", [](auto& h) { h.layer = kMax32; }, "layer is 4294967295"},
      {"layer L", [](auto& h) { h.layer = 61; }, "layer is 61, the limit is 60"},
      {"round", [](auto& h) { h.round = 16; }, "round is 16"},
      {"micro-batch", [](auto& h) { h.micro_batch = 2; }, "micro_batch is 2"},
      {"part = parts", [](auto& h) { h.part = 1; }, "part 1 of 1"},
      {"no parts", [](auto& h) { h.parts = 0; }, "part 0 of 0"},
      {"more parts than bytes", [](auto& h) { h.parts = 3; }, "has no 3 parts"},
      {"2^32 parts", [](auto& h) { h.parts = kMax32; }, "has no 4294967295 parts"},
      {"kind 0", [](auto& h) { h.kind = FrameKind(0); }, "kind 0"},
      {"kind 5", [](auto& h) { h.kind = FrameKind(5); }, "kind 5"},
      {"kind 1024", [](auto& h) { h.kind = FrameKind(1024); }, "kind 1024"},
      {"incarnation 0", [](auto& h) { h.incarnation = 0; }, "incarnation"},
      {"metadata beyond the limit", [](auto& h) { h.metadata_bytes = 1 << 30; }, "metadata_bytes"},
      {"metadata unpadded", [](auto& h) { h.metadata_bytes = 63; }, "not a multiple of 64"},
      {"no checksum", [](auto& h) { h.has_checksum = false; }, "no checksum"},
  };
  for (const Case& hostile : cases) {
    FrameHeader header = DocumentedHeader();
    hostile.change(header);
    const auto decoded = Decode(EncodeFrameHeader(header), SmallLimits());
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument) << hostile.name;
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(hostile.message))
        << hostile.name;
  }
}

TEST(FrameHeaderTest, RefusesAShapeWhoseProductWraps) {
  // 2^31 - 1 elements of 8 bytes, 2^31 times: 2^65 bytes, which 64 bits would read as almost none.
  FrameLimits limits = SmallLimits();
  limits.max_num_rows = std::numeric_limits<uint64_t>::max();
  limits.max_row_width = std::numeric_limits<uint32_t>::max();
  FrameHeader header = DocumentedHeader();
  header.metadata_bytes = 0;
  header.payload_bytes = 0;
  header.dtype = DType::kI64;
  header.row_width = 0x80000000u;
  for (const uint64_t num_rows :
       {uint64_t{1} << 30, uint64_t{1} << 31, uint64_t{1} << 32, ~uint64_t{0} >> 1}) {
    header.num_rows = num_rows;
    EXPECT_THAT(std::string(Decode(EncodeFrameHeader(header), limits).status().message()),
                HasSubstr("pass the message limit"));
  }
}

TEST(FrameHeaderTest, RefusesForeignBytes) {
  const FrameLimits limits = SmallLimits();
  const EncodedHeader good = EncodeFrameHeader(DocumentedHeader());
  EXPECT_TRUE(Decode(good, limits).ok());
  for (const size_t size : {0, 7, 127}) {
    EXPECT_FALSE(DecodeFrameHeader(absl::MakeConstSpan(good.data(), size), limits).ok());
  }
  struct Change {
    size_t offset;
    uint8_t value;
    const char* message;
  };
  for (const Change& change : std::vector<Change>{{0, 'G', "starts with"},
                                                  {4, 1, "wire version 1, this process speaks 2"},
                                                  {4, 3, "wire version 3"},
                                                  {77, 3, "flags 3"},
                                                  {78, 1, "reserved"},
                                                  {112, 1, "reserved"},
                                                  {127, 1, "reserved"}}) {
    EncodedHeader bytes = good;
    bytes[change.offset] = change.value;
    EXPECT_THAT(std::string(Decode(bytes, limits).status().message()), HasSubstr(change.message));
  }
}

TEST(FrameHeaderTest, TakesZeroRowsAndEmptyMessages) {
  FrameHeader header = DocumentedHeader();
  header.num_rows = 0;
  header.payload_bytes = 64;
  EXPECT_TRUE(Decode(EncodeFrameHeader(header), SmallLimits()).ok());
  header.metadata_bytes = 0;
  header.payload_bytes = 0;
  header.dtype = DType::kUnspecified;
  header.row_width = 0;
  EXPECT_TRUE(Decode(EncodeFrameHeader(header), SmallLimits()).ok());
}

TEST(FrameHeaderTest, TakesTheLimitAndRefusesOneMore) {
  FrameLimits limits = SmallLimits();
  limits.max_message_bytes = 64 * 2 * 100;
  limits.max_payload_bytes = limits.max_message_bytes;
  FrameHeader header = DocumentedHeader();
  header.metadata_bytes = 0;
  header.row_width = 64;
  header.num_rows = 100;
  header.payload_bytes = limits.max_message_bytes;
  EXPECT_TRUE(Decode(EncodeFrameHeader(header), limits).ok());
  header.num_rows = 101;
  header.payload_bytes += 128;
  EXPECT_FALSE(Decode(EncodeFrameHeader(header), limits).ok());
  header.num_rows = 100;
  header.payload_bytes = limits.max_message_bytes;
  limits.max_payload_bytes -= kMessageAlignment;
  EXPECT_FALSE(Decode(EncodeFrameHeader(header), limits).ok());
}

TEST(FrameHeaderTest, PartsTileTheMessageForEverySizeAndFrameLimit) {
  for (uint64_t max_payload = 64; max_payload <= 512; max_payload += 64) {
    for (uint64_t bytes = 0; bytes < 3000; bytes += 8) {
      FrameLimits limits = SmallLimits();
      limits.max_payload_bytes = max_payload;
      FrameHeader header = DocumentedHeader();
      header.metadata_bytes = 0;
      header.row_width = 4;
      header.num_rows = bytes / 8;
      header.parts = NumParts(bytes, max_payload);
      uint64_t sum = 0;
      for (header.part = 0; header.part < header.parts; ++header.part) {
        const uint64_t part_bytes = PartBytes(bytes, header.parts);
        header.payload_bytes = std::min(part_bytes, bytes - header.part * part_bytes);
        sum += header.payload_bytes;
        ASSERT_TRUE(ValidateFrameHeader(header, limits).ok())
            << bytes << " " << max_payload << " " << header.part;
      }
      ASSERT_EQ(sum, bytes);
    }
  }
}

TEST(FrameHeaderTest, FindsEveryFlippedBit) {
  FrameHeader header = DocumentedHeader();
  const Payload payload = DocumentedPayload();
  header.checksum = FrameChecksum(header, HashPayload(payload));
  const EncodedHeader good = EncodeFrameHeader(header);
  const FrameLimits limits = SmallLimits();
  for (size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    EncodedHeader bytes = good;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    const auto decoded = Decode(bytes, limits);
    EXPECT_FALSE(decoded.ok() && VerifyPayload(*decoded, payload).ok()) << "header bit " << bit;
  }
  for (size_t bit = 0; bit < 8 * payload[0].size(); ++bit) {
    std::vector<uint8_t> bytes(payload[0].span().begin(), payload[0].span().end());
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_EQ(VerifyPayload(header, {SharedBytes::Borrow(absl::MakeConstSpan(bytes))}).code(),
              absl::StatusCode::kDataLoss);
  }
}

TEST(FrameHeaderTest, HashesPiecesLikeOnePiece) {
  const Payload whole = DocumentedPayload();
  for (size_t cut = 0; cut <= whole[0].size(); ++cut) {
    const Payload pieces = {whole[0].Slice(0, cut), whole[0].Slice(cut, whole[0].size())};
    EXPECT_EQ(HashPayload(pieces), HashPayload(whole));
    std::vector<uint8_t> copy(whole[0].size());
    CopyPayload(pieces, copy.data());
    EXPECT_EQ(absl::MakeConstSpan(copy), whole[0].span());
    const Payload middle = SlicePayload(pieces, 10, 70);
    EXPECT_EQ(PayloadBytes(middle), 60u);
    CopyPayload(middle, copy.data());
    EXPECT_EQ(copy[0], 10);
  }
}

TEST(FrameHeaderTest, RandomHeadersSurviveTheRoundTrip) {
  constexpr uint64_t kSeed = 20;
  Random random(kSeed);
  const FrameLimits limits = SmallLimits();
  for (int i = 0; i < 2000; ++i) {
    FrameHeader header = DocumentedHeader();
    header.term = random.Bits();
    header.step = random.Bits();
    header.epoch = random.Bits();
    header.incarnation = random.Bits() | 1;
    header.attempt = static_cast<uint32_t>(random.Bits());
    header.layer = static_cast<uint32_t>(random.Below(61));
    header.num_rows = random.Below(16);
    header.row_width = static_cast<uint32_t>(1 + random.Below(64));
    header.metadata_bytes = static_cast<uint32_t>(64 * random.Below(8));
    header.payload_bytes = MessageBytes(header);
    header.sequence = random.Bits();
    header.checksum = random.Bits();
    const EncodedHeader bytes = EncodeFrameHeader(header);
    const auto decoded = Decode(bytes, limits);
    ASSERT_TRUE(decoded.ok()) << "seed " << kSeed << ": " << decoded.status();
    EXPECT_EQ(EncodeFrameHeader(*decoded), bytes);
  }
}

TEST(FrameLimitsTest, FollowTheConfiguration) {
  FrameLimitsConfig config;
  config.max_rows = 512;
  config.max_row_width = 7168;
  config.max_element_bytes = 2;
  config.max_metadata_row_bytes = 72;
  config.num_layers = 61;
  const auto limits = BuildFrameLimits(config);
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->max_message_bytes, 512u * 7168 * 2 + 4096 + 512 * 72);
  EXPECT_EQ(limits->max_layer, 60u);
  EXPECT_EQ(limits->max_num_rows, 512u);
  EXPECT_EQ(limits->max_payload_bytes, 1u << 20);
}

TEST(FrameLimitsTest, RefuseAMessageBeyondTheCap) {
  FrameLimitsConfig config;
  config.max_rows = 1 << 20;
  config.max_row_width = 7168;
  EXPECT_THAT(std::string(BuildFrameLimits(config).status().message()), HasSubstr("the cap is"));
  config.max_rows = 0;
  EXPECT_THAT(std::string(BuildFrameLimits(config).status().message()), HasSubstr("max_rows is 0"));
}

}  // namespace
}  // namespace moebius
