// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/grpc/grpc_frame.h"

#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "proto/moebius/api/data/v1/data.pb.h"

namespace moebius {
namespace {

namespace pb = ::moebius::api::data::v1;

std::string TextOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return text;
}

// The text in slices of at most `slice_bytes`, as a network would cut it.
grpc::ByteBuffer BufferOf(const std::string& text, size_t slice_bytes) {
  std::vector<grpc::Slice> slices;
  for (size_t begin = 0; begin < text.size(); begin += slice_bytes) {
    slices.emplace_back(text.substr(begin, slice_bytes));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

WireFrame FrameOf(const std::vector<std::string>& pieces) {
  WireFrame frame;
  for (size_t i = 0; i < kFrameHeaderBytes; ++i) frame.header[i] = static_cast<uint8_t>(200 - i);
  for (const std::string& piece : pieces) frame.payload.push_back(SharedBytes::Copy(piece));
  return frame;
}

std::string TextOf(const Payload& payload) {
  std::string text;
  for (const SharedBytes& piece : payload) text += std::string(piece.view());
  return text;
}

std::string HeaderText() {
  const WireFrame frame = FrameOf({});
  return std::string(frame.header.begin(), frame.header.end());
}

TEST(GrpcFrameTest, ProtobufReadsWhatWasEncoded) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{20000}, size_t{3} << 20}) {
    const std::string body(size, 'x');
    pb::Frame message;
    ASSERT_TRUE(message.ParseFromString(TextOf(EncodeGrpcFrame(FrameOf({body, "tail"})))));
    EXPECT_EQ(message.frame(), HeaderText() + body + "tail");
    // The bytes are protobuf's own, too: the shortest form.
    EXPECT_EQ(message.SerializeAsString(), TextOf(EncodeGrpcFrame(FrameOf({body, "tail"}))));
  }
}

TEST(GrpcFrameTest, DecodesWhatProtobufWroteHoweverItIsCut) {
  std::string body(5000, '\0');
  for (size_t i = 0; i < body.size(); ++i) body[i] = static_cast<char>(i * 7);
  pb::Frame message;
  message.set_frame(HeaderText() + body);
  const std::string text = message.SerializeAsString();
  for (const size_t slice_bytes :
       {size_t{1}, size_t{2}, size_t{130}, size_t{131}, size_t{1000}, text.size()}) {
    const auto frame = DecodeGrpcFrame(BufferOf(text, slice_bytes), body.size());
    ASSERT_TRUE(frame.ok()) << frame.status();
    EXPECT_EQ(std::string(frame->header.begin(), frame->header.end()), HeaderText());
    EXPECT_EQ(TextOf(frame->payload), body);
  }
}

TEST(GrpcFrameTest, CopiesNoPayloadByteOnTheWayOut) {
  WireFrame frame = FrameOf({std::string(4096, 'a'), std::string(100000, 'b')});
  const uint8_t* first = frame.payload[0].data();
  const uint8_t* second = frame.payload[1].data();
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(EncodeGrpcFrame(std::move(frame)).Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[0].size(), kFrameHeaderBytes + 4);
  EXPECT_EQ(slices[1].begin(), first);
  EXPECT_EQ(slices[2].begin(), second);
}

TEST(GrpcFrameTest, CopiesNoPayloadByteOnTheWayIn) {
  pb::Frame message;
  message.set_frame(HeaderText() + std::string(9000, 'c'));
  const grpc::ByteBuffer buffer = BufferOf(message.SerializeAsString(), 4000);
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(buffer.Dump(&slices).ok());
  const auto frame = DecodeGrpcFrame(buffer, 9000);
  ASSERT_TRUE(frame.ok());
  ASSERT_EQ(frame->payload.size(), slices.size());
  EXPECT_EQ(frame->payload[0].data(), slices[0].begin() + 3 + kFrameHeaderBytes);
  EXPECT_EQ(frame->payload[1].data(), slices[1].begin());
}

TEST(GrpcFrameTest, TheOwnersOfPayloadAreLetGoWithTheBuffer) {
  auto owner = std::make_shared<std::string>(5000, 'd');
  WireFrame frame = FrameOf({});
  frame.payload.push_back(
      SharedBytes(owner, reinterpret_cast<const uint8_t*>(owner->data()), owner->size()));
  {
    const grpc::ByteBuffer buffer = EncodeGrpcFrame(std::move(frame));
    EXPECT_EQ(owner.use_count(), 2);
  }
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(GrpcFrameTest, RefusesEverythingElseWithAReason) {
  const std::string header = HeaderText();
  const std::string good = std::string("\x0a\x80\x01", 3) + header;
  ASSERT_TRUE(DecodeGrpcFrame(BufferOf(good, 50), 100).ok());
  const struct {
    std::string name, text, reason;
  } cases[] = {
      {"nothing", "", ""},
      {"another field", std::string("\x12\x80\x01", 3) + header, "not field 1"},
      {"a varint field", "\x08\x01", "not field 1"},
      {"a tag alone", "\x0a", "ends inside its length"},
      {"half a length", "\x0a\x80", "ends inside its length"},
      {"an endless length", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "too long"},
      {"a claim of 4 GiB", std::string("\x0a\xff\xff\xff\xff\x0f", 6) + header, "claims"},
      {"a length in a longer form", std::string("\x0a\x80\x81\x00", 4) + header, "shortest form"},
      {"one byte less", good.substr(0, good.size() - 1), "claims"},
      {"one byte more", good + "x", "claims"},
      {"a second field", good + good, "claims"},
      {"less than a header", std::string("\x0a\x7f", 2) + header.substr(1), "shorter"},
      {"an empty frame", std::string("\x0a\x00", 2), "shorter"},
  };
  for (const auto& bad : cases) {
    for (const size_t slice_bytes : {size_t{1}, size_t{1000}}) {
      const auto frame = DecodeGrpcFrame(BufferOf(bad.text, slice_bytes), 1000);
      EXPECT_EQ(frame.status().code(), absl::StatusCode::kInvalidArgument) << bad.name;
      EXPECT_THAT(std::string(frame.status().message()), testing::HasSubstr(bad.reason))
          << bad.name;
    }
  }
}

TEST(GrpcFrameTest, TakesAPayloadAtTheLimitAndNotOneByteMore) {
  for (const size_t extra : {size_t{0}, size_t{1}}) {
    pb::Frame message;
    message.set_frame(HeaderText() + std::string(1000 + extra, 'e'));
    const auto frame = DecodeGrpcFrame(BufferOf(message.SerializeAsString(), 400), 1000);
    EXPECT_EQ(frame.status().code(),
              extra == 0 ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace moebius
