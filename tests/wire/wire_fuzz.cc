// SPDX-License-Identifier: Apache-2.0
// A message from anywhere: the first byte chooses how it is read, the next its number of rows, the
// rest is metadata.
#include <cstddef>
#include <cstdint>

#include "moebius/base/check.h"
#include "moebius/wire/dispatch_codec.h"
#include "moebius/wire/error_detail.h"
#include "moebius/wire/exchange_codec.h"
#include "moebius/wire/greeting.h"
#include "moebius/wire/message_kind.h"
#include "moebius/wire/probe_codec.h"
#include "moebius/wire/slot_codec.h"
#include "moebius/wire/step_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moebius;  // NOLINT: a fuzz target is one function
  if (size < 2) return 0;
  constexpr int64_t kHidden = 4;
  Message message;
  message.num_rows = data[1] % 8;
  message.row_width = kHidden;
  message.dtype = DType::kBF16;
  message.rows = SharedBytes::Copy(std::string(message.num_rows * kHidden * 2, 'r'));
  message.metadata = SharedBytes::Copy(absl::MakeConstSpan(data + 2, size - 2));
  switch (data[0] % 10) {
    case 0: {
      ReceivedDispatch received;
      const absl::Status status = received.Decode(message, kHidden, 10);
      if (!status.ok()) break;
      MOEBIUS_CHECK_EQ(received.dispatch().num_rows(), static_cast<int64_t>(message.num_rows));
      MOEBIUS_CHECK_LE(received.dispatch().num_reply_rows, received.dispatch().num_assignments());
      break;
    }
    case 1:
      message.num_rows = 0;
      message.rows = SharedBytes();
      if (StepPlan plan; ParseStepPlan(message, &plan).ok()) {
        MOEBIUS_CHECK(ValidateStepPlan(plan).ok());
      }
      break;
    case 2:
      static_cast<void>(ParseReply(message, static_cast<int64_t>(message.num_rows), kHidden));
      break;
    case 3:
      static_cast<void>(ParseStepAnswer(message));
      break;
    case 4:
      static_cast<void>(ParseStepEnd(message));
      static_cast<void>(ParseSessionEnd(message));
      break;
    case 6:
      message.num_rows = 0;
      static_cast<void>(ParseSlotAssignment(message));
      static_cast<void>(ParseSlotReady(message));
      break;
    case 7:
      static_cast<void>(ParseGreeting(message.metadata.view()));
      break;
    case 8:
      static_cast<void>(ParseQueryStates(message, 1, kHidden));
      static_cast<void>(ParseStateReply(message, 1, kHidden));
      break;
    case 9:
      message.num_rows = 0;
      message.rows = SharedBytes();
      static_cast<void>(ParseKvRequest(message));
      static_cast<void>(ParseProbeReply(message));
      break;
    default:
      static_cast<void>(DecodeStatus(message.metadata.view()));
  }
  return 0;
}
