// SPDX-License-Identifier: Apache-2.0
#include "moebius/transport/shm/ring.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "moebius/base/random.h"
#include "tests/transport/link_user.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxPayload = 1000;
constexpr uint64_t kRingBytes = 4096;

// A ring in memory of its exact size, so that the address sanitizer sees every step out of it.
class RingTest : public ::testing::Test {
 protected:
  RingTest()
      : data_(static_cast<uint8_t*>(std::aligned_alloc(kRingLineBytes, kRingBytes)), std::free) {
    std::fill_n(data_.get(), kRingBytes, 0);
  }
  RingMemory memory() { return {&control_, data_.get(), kRingBytes}; }
  // One record with a size that is whatever the test says.
  void WriteSize(uint64_t position, uint64_t payload_bytes) {
    std::memcpy(data_.get() + position, &payload_bytes, sizeof(payload_bytes));
  }

  RingControl control_ = {};
  std::unique_ptr<uint8_t, void (*)(void*)> data_;
  RingWriter writer_{memory()};
  BufferPool buffers_{1 << 20};
  RingReader reader_{memory(), kMaxPayload, buffers_};
};

TEST_F(RingTest, CarriesEverySizeAroundItsEnd) {
  uint64_t number = 0;
  for (int round = 0; round < 20; ++round) {
    for (const size_t size : {0, 1, 63, 64, 65, 500, 936, 937, 1000}) {
      ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(number, size)));
      const auto frame = reader_.Read();
      ASSERT_TRUE(frame.ok() && frame->has_value()) << frame.status();
      EXPECT_EQ(Difference(**frame, number, size), "") << size;
      EXPECT_EQ((*frame)->payload.size(), size == 0 ? 0u : 1u);
      if (size > 0) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>((*frame)->payload[0].data()) % 64, 0u);
      }
      ++number;
    }
  }
  EXPECT_FALSE(reader_.Read()->has_value());
}

TEST_F(RingTest, GathersAPayloadOfManyPieces) {
  WireFrame frame = NumberedFrame(3, 700);
  const SharedBytes whole = frame.payload[0];
  frame.payload = {whole.Slice(0, 1), whole.Slice(1, 1), whole.Slice(1, 600),
                   whole.Slice(600, 700)};
  ASSERT_TRUE(*writer_.TryWrite(frame));
  const auto read = reader_.Read();
  EXPECT_EQ(Difference(**read, 3, 700), "");
}

TEST_F(RingTest, AFullRingRefusesAndReleasesItsWriterOnceHalfIsEmpty) {
  uint64_t taken = 0;
  while (*writer_.TryWrite(NumberedFrame(taken, 300))) ++taken;
  EXPECT_EQ(taken, kRingBytes / RecordBytes(300));
  EXPECT_FALSE(writer_.IsReleased());
  for (uint64_t number = 0; number < taken; ++number) {
    const bool was_half_full = (taken - number) * RecordBytes(300) > kRingBytes / 2;
    EXPECT_EQ(Difference(**reader_.Read(), number, 300), "");
    const bool is_half_full = (taken - number - 1) * RecordBytes(300) > kRingBytes / 2;
    // Once, at the step over the middle.
    EXPECT_EQ(reader_.TakeWriterWaits(), was_half_full && !is_half_full) << number;
    EXPECT_EQ(writer_.IsReleased(), !is_half_full);
  }
  EXPECT_TRUE(*writer_.TryWrite(NumberedFrame(0, kMaxPayload)));
}

TEST_F(RingTest, AReaderThatSleepsIsToldOnce) {
  EXPECT_FALSE(writer_.TakeReaderWaits());
  EXPECT_TRUE(reader_.Sleep());
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(0, 10)));
  EXPECT_TRUE(writer_.TakeReaderWaits());
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(1, 10)));
  EXPECT_FALSE(writer_.TakeReaderWaits());
  // It does not go to sleep over what is there.
  EXPECT_FALSE(reader_.Sleep());
  EXPECT_FALSE(writer_.TakeReaderWaits());
}

TEST_F(RingTest, AnEndIsSeenAfterWhatWasWritten) {
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(0, 10)));
  writer_.End();
  EXPECT_TRUE(reader_.HasEnded());
  EXPECT_FALSE(writer_.IsDrained());
  EXPECT_TRUE(reader_.Read()->has_value());
  EXPECT_FALSE(reader_.Read()->has_value());
  EXPECT_TRUE(writer_.IsDrained());
  EXPECT_FALSE(reader_.Sleep());
}

TEST_F(RingTest, WhatIsWrittenAfterAFreezeIsNotRead) {
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(0, 10)));
  reader_.Freeze();
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(1, 10)));
  EXPECT_TRUE(reader_.Read()->has_value());
  EXPECT_FALSE(reader_.Read()->has_value());
}

TEST_F(RingTest, APayloadAtTheLimitIsReadAndOneByteMoreIsRefused) {
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(0, kMaxPayload)));
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(1, kMaxPayload + 1)));
  EXPECT_EQ(Difference(**reader_.Read(), 0, kMaxPayload), "");
  EXPECT_EQ(reader_.Read().status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RingTest, ImpossiblePositionsOfTheWriterAreDataLoss) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  for (const uint64_t written : {uint64_t{1}, uint64_t{63}, uint64_t{64}, uint64_t{128},
                                 kRingBytes + 64, uint64_t{1} << 63, kMax, kMax - 63}) {
    RingReader reader(memory(), kMaxPayload, buffers_);
    control_.written.store(written);
    EXPECT_EQ(reader.Read().status().code(), absl::StatusCode::kDataLoss) << written;
  }
  // Back behind what has been read.
  control_.written.store(0);
  control_.consumed.store(0);
  RingReader reader(memory(), kMaxPayload, buffers_);
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(0, 100)));
  ASSERT_TRUE(reader.Read()->has_value());
  control_.written.store(0);
  EXPECT_EQ(reader.Read().status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RingTest, ImpossibleSizesEndTheReadingBeforeAnythingIsAllocated) {
  const struct {
    uint64_t payload_bytes;
    absl::StatusCode code;
  } cases[] = {
      {std::numeric_limits<uint64_t>::max(), absl::StatusCode::kResourceExhausted},
      {std::numeric_limits<uint64_t>::max() - 191, absl::StatusCode::kResourceExhausted},
      {uint64_t{1} << 40, absl::StatusCode::kResourceExhausted},
      {kMaxPayload + 1, absl::StatusCode::kResourceExhausted},
      // Possible, but not all of it has been written.
      {kMaxPayload, absl::StatusCode::kDataLoss},
      {65, absl::StatusCode::kDataLoss},
  };
  for (const auto& wrong : cases) {
    RingReader reader(memory(), kMaxPayload, buffers_);
    WriteSize(0, wrong.payload_bytes);
    control_.written.store(RecordBytes(64));
    EXPECT_EQ(reader.Read().status().code(), wrong.code) << wrong.payload_bytes;
  }
}

TEST_F(RingTest, ImpossiblePositionsOfTheReaderAreDataLoss) {
  while (*writer_.TryWrite(NumberedFrame(0, 300))) {
  }
  control_.consumed.store(kRingBytes + 64);  // more than was written
  EXPECT_EQ(writer_.TryWrite(NumberedFrame(0, 300)).status().code(), absl::StatusCode::kDataLoss);
  control_.consumed.store(2 * RecordBytes(300));
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(0, 300)));
  while (*writer_.TryWrite(NumberedFrame(0, 300))) {
  }
  control_.consumed.store(0);  // back again
  EXPECT_EQ(writer_.TryWrite(NumberedFrame(0, 300)).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(RingTest, WhatHasBeenReadNoLongerChanges) {
  ASSERT_TRUE(*writer_.TryWrite(NumberedFrame(5, 900)));
  const auto frame = reader_.Read();
  ASSERT_TRUE(frame.ok() && frame->has_value());
  std::fill_n(data_.get(), kRingBytes, 0xff);
  EXPECT_EQ(Difference(**frame, 5, 900), "");
}

TEST_F(RingTest, ScribblingAnywhereNeverLeadsOutOfTheRing) {
  uint64_t seed = 20;
  uint64_t failures = 0;
  for (int round = 0; round < 3000; ++round) {
    Random random(seed++);
    control_.written.store(0);
    control_.consumed.store(0);
    RingWriter writer(memory());
    RingReader reader(memory(), kMaxPayload, buffers_);
    bool is_broken = false;
    for (int step = 0; step < 20 && !is_broken; ++step) {
      is_broken |= !writer.TryWrite(NumberedFrame(1, random.Below(kMaxPayload + 1))).ok();
      // A byte of a record, or of a position, or a position as large as can be.
      const uint64_t what = random.Below(8);
      if (what == 0) {
        control_.written.store(random.Bits());
      } else if (what == 1) {
        control_.consumed.store(random.Bits());
      } else if (what == 2) {
        control_.written.fetch_add(kRingLineBytes * random.Below(80));
      } else if (what == 3) {
        control_.consumed.fetch_sub(kRingLineBytes * random.Below(80));
      } else {
        data_.get()[random.Below(kRingBytes)] = static_cast<uint8_t>(random.Bits());
      }
      for (int i = 0; i < 3 && !is_broken; ++i) {
        const auto frame = reader.Read();
        is_broken |= !frame.ok();
        if (!frame.ok() || !frame->has_value()) break;
        EXPECT_LE(PayloadBytes((*frame)->payload), kMaxPayload) << "seed " << seed;
      }
    }
    failures += is_broken ? 1 : 0;
  }
  // Most of it is noticed; the rest are wrong bytes, which checksums are for.
  EXPECT_GT(failures, 1000u);
}

TEST_F(RingTest, TwoThreadsLoseNothingAndNobodySleepsForEver) {
  constexpr uint64_t kFrames = 20000;
  std::atomic<uint32_t> reader_bell{0};
  std::atomic<uint32_t> writer_bell{0};
  const auto ring = [](std::atomic<uint32_t>& bell) {
    bell.fetch_add(1);
    bell.notify_one();
  };
  std::thread writer([&] {
    for (uint64_t number = 0; number < kFrames;) {
      const uint32_t heard = writer_bell.load();
      if (*writer_.TryWrite(NumberedFrame(number, number % kMaxPayload))) {
        ++number;
        if (writer_.TakeReaderWaits()) ring(reader_bell);
      } else {
        writer_bell.wait(heard);
      }
    }
  });
  for (uint64_t number = 0; number < kFrames;) {
    const uint32_t heard = reader_bell.load();
    const auto frame = reader_.Read();
    ASSERT_TRUE(frame.ok()) << frame.status();
    if (frame->has_value()) {
      ASSERT_EQ(Difference(**frame, number, number % kMaxPayload), "");
      ++number;
      if (reader_.TakeWriterWaits()) ring(writer_bell);
    } else if (reader_.Sleep()) {
      reader_bell.wait(heard);
    }
  }
  writer.join();
}

}  // namespace
}  // namespace moebius
