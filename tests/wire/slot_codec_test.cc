// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/slot_codec.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/transport/frame/byte_codec.h"
#include "moebius/wire/message_kind.h"

namespace moebius {
namespace {

using ::testing::HasSubstr;

SlotAssignment ExpertSlot() {
  SlotAssignment slot;
  slot.role = Role::kExpert;
  slot.number = 12;
  slot.index = 2;
  slot.count = 4;
  slot.term = 7;
  slot.epoch = Epoch(9);
  slot.row_budget = 512;
  for (const auto& [layer, id] :
       std::vector<std::pair<int, int>>{{0, 32}, {1, 0}, {1, 1}, {1, 2}, {1, 32}, {3, 3}}) {
    slot.held.push_back({LayerId(layer), ExpertId(id)});
  }
  return slot;
}

SlotAssignment AttentionSlot() {
  SlotAssignment slot;
  slot.role = Role::kAttention;
  slot.index = 1;
  slot.count = 2;
  slot.row_budget = 64;
  slot.rank_addresses = {"127.0.0.1:1", "[::1]:2"};
  return slot;
}

// What a message of these bytes would be.
Message WithMetadata(Message message, std::string bytes) {
  message.metadata = SharedBytes::Copy(bytes);
  return message;
}

TEST(SlotAssignmentTest, BringsTheSlotsOfBothRoles) {
  SlotAssignment spare;
  spare.role = Role::kAttention;
  spare.count = 3;
  for (const SlotAssignment& slot : {ExpertSlot(), AttentionSlot(), spare}) {
    const Message message = BuildSlotAssignment(slot);
    EXPECT_EQ(message.key.kind, kAssignSlotKind);
    EXPECT_LE(message.metadata.size(),
              MaxSlotAssignmentBytes(static_cast<int64_t>(slot.held.size()), slot.count));
    const auto parsed = ParseSlotAssignment(message);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, slot);
  }
  EXPECT_TRUE(spare.is_spare());
}

TEST(SlotAssignmentTest, RefusesEveryCut) {
  for (const SlotAssignment& slot : {ExpertSlot(), AttentionSlot()}) {
    const Message message = BuildSlotAssignment(slot);
    const std::string bytes(message.metadata.view());
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(ParseSlotAssignment(WithMetadata(message, bytes.substr(0, size))).ok()) << size;
    }
  }
}

TEST(SlotAssignmentTest, RefusesHostileNumbers) {
  struct Case {
    const char* name;
    uint8_t role;
    int32_t index, count;
    int64_t rows;
    std::vector<uint32_t> runs;
  };
  const std::vector<Case> cases = {{"the router has no slots", 1, 0, 1, 1, {}},
                                   {"an unknown role", 200, 0, 1, 1, {}},
                                   {"index beyond count", 2, 4, 4, 1, {}},
                                   {"index below a spare's", 2, -2, 4, 1, {}},
                                   {"count 0", 2, -1, 0, 1, {}},
                                   {"count 2^31 - 1", 2, 0, 2147483647, 1, {}},
                                   {"rows 0", 2, 0, 1, 0, {}},
                                   {"rows 2^40", 2, 0, 1, int64_t{1} << 40, {}},
                                   {"a run of 4 thousand million", 2, 0, 1, 1, {0, 0, 0xffffffff}},
                                   {"an empty run", 2, 0, 1, 1, {0, 0, 0}},
                                   {"a layer beyond 2^31", 2, 0, 1, 1, {0x80000000, 0, 1}},
                                   {"runs that overlap", 2, 0, 1, 1, {0, 0, 4, 0, 3, 1}},
                                   {"experts of a spare", 2, -1, 1, 1, {0, 0, 1}},
                                   {"experts of an attention rank", 3, -1, 1, 1, {0, 0, 1}},
                                   {"a rank without addresses", 3, 0, 1, 1, {}}};
  for (const Case& hostile : cases) {
    ByteWriter out;
    out.Write(hostile.role);
    out.Write(hostile.index);
    out.Write(hostile.count);
    out.Write(hostile.rows);
    out.Write(static_cast<uint32_t>(hostile.runs.size() / 3));
    for (const uint32_t number : hostile.runs) out.Write(number);
    out.Write(uint32_t{0});
    Message message;
    message.metadata = out.Share();
    EXPECT_EQ(ParseSlotAssignment(message).status().code(), absl::StatusCode::kInvalidArgument)
        << hostile.name;
  }
}

TEST(SlotAssignmentTest, TakesNoMemoryForRunsThatAreNotThere) {
  ByteWriter out;
  out.Write(uint8_t{2});
  out.Write(int32_t{0});
  out.Write(int32_t{1});
  out.Write(int64_t{1});
  out.Write(uint32_t{0xffffffff});
  Message message;
  message.metadata = out.Share();
  EXPECT_THAT(std::string(ParseSlotAssignment(message).status().message()),
              HasSubstr("runs of experts are missing"));
}

TEST(SlotReadyTest, BringsProgressSuccessAndFailure) {
  SlotReady loading;
  loading.number = 5;
  loading.loaded_bytes = 10;
  loading.total_bytes = 20;
  SlotReady ready;
  ready.phase = SlotPhase::kReady;
  ready.loaded_bytes = ready.total_bytes = 20;
  ready.tier = "avx512bf16";
  ready.threads = 2;
  ready.kv_block_tokens = 1024;
  ready.kv_num_blocks = 9;
  SlotReady failed;
  failed.phase = SlotPhase::kFailed;
  failed.status = WithHint(absl::ResourceExhaustedError("no memory"), "give it more");
  for (const SlotReady& report : {loading, ready, failed}) {
    const Message message = BuildSlotReady(report);
    EXPECT_EQ(message.key.kind, kSlotReadyKind);
    EXPECT_LE(message.metadata.size(), MaxSlotReadyBytes());
    const auto parsed = ParseSlotReady(message);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->number, report.number);
    EXPECT_EQ(parsed->phase, report.phase);
    EXPECT_EQ(parsed->status.code(), report.status.code());
    EXPECT_EQ(HintOf(parsed->status), HintOf(report.status));
    EXPECT_EQ(parsed->loaded_bytes, report.loaded_bytes);
    EXPECT_EQ(parsed->total_bytes, report.total_bytes);
    EXPECT_EQ(parsed->tier, report.tier);
    EXPECT_EQ(parsed->kv_num_blocks, report.kv_num_blocks);
  }
}

TEST(SlotReadyTest, RefusesCutsPhasesAndCountsThatCannotBe) {
  SlotReady ready;
  ready.phase = SlotPhase::kReady;
  const Message message = BuildSlotReady(ready);
  const std::string bytes(message.metadata.view());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(ParseSlotReady(WithMetadata(message, bytes.substr(0, size))).ok()) << size;
  }
  std::string changed = bytes;
  changed[0] = 7;
  EXPECT_FALSE(ParseSlotReady(WithMetadata(message, changed)).ok());
  changed[0] = static_cast<char>(SlotPhase::kFailed);  // without saying why
  EXPECT_FALSE(ParseSlotReady(WithMetadata(message, changed)).ok());
  SlotReady negative = ready;
  negative.kv_num_blocks = -1;
  EXPECT_FALSE(ParseSlotReady(BuildSlotReady(negative)).ok());
}

}  // namespace
}  // namespace moebius
