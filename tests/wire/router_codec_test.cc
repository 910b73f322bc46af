// SPDX-License-Identifier: Apache-2.0
#include "moebius/wire/api/router_codec.h"

#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/wire/error_detail.h"

namespace moebius {
namespace {

namespace pb = router_pb;
using ::testing::HasSubstr;

// Every field of a message and of those inside it, to a value that is none of its defaults.
void FillMessage(google::protobuf::Message* message, int depth = 0) {
  using google::protobuf::FieldDescriptor;
  const auto* reflection = message->GetReflection();
  for (int index = 0; index < message->GetDescriptor()->field_count(); ++index) {
    const FieldDescriptor* field = message->GetDescriptor()->field(index);
    const int repeats = field->is_repeated() ? 2 : 1;
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const int value = 3 + index + repeat;
      switch (field->cpp_type()) {
#define MOEBIUS_FILL(type, Name, converted)                                  \
  case FieldDescriptor::type:                                                \
    field->is_repeated() ? reflection->Add##Name(message, field, converted)  \
                         : reflection->Set##Name(message, field, converted); \
    break
        MOEBIUS_FILL(CPPTYPE_INT32, Int32, value);
        MOEBIUS_FILL(CPPTYPE_INT64, Int64, value);
        MOEBIUS_FILL(CPPTYPE_UINT32, UInt32, static_cast<uint32_t>(value));
        MOEBIUS_FILL(CPPTYPE_UINT64, UInt64, static_cast<uint64_t>(value));
        MOEBIUS_FILL(CPPTYPE_DOUBLE, Double, value + 0.5);
        MOEBIUS_FILL(CPPTYPE_FLOAT, Float, static_cast<float>(value) + 0.25f);
        MOEBIUS_FILL(CPPTYPE_BOOL, Bool, true);
        MOEBIUS_FILL(CPPTYPE_STRING, String, std::string(1, static_cast<char>('a' + value)));
#undef MOEBIUS_FILL
        case FieldDescriptor::CPPTYPE_ENUM:
          reflection->SetEnumValue(message, field, 2);
          break;
        case FieldDescriptor::CPPTYPE_MESSAGE:
          ASSERT_LT(depth, 8);
          FillMessage(field->is_repeated() ? reflection->AddMessage(message, field)
                                           : reflection->MutableMessage(message, field),
                      depth + 1);
          break;
      }
    }
  }
}

template <typename Pb>
Pb Filled() {
  Pb message;
  FillMessage(&message);
  return message;
}

// A field that either way forgets is a difference.
template <typename Pb, typename Value>
void ExpectSame(const Pb& expected, const Value& value) {
  Pb again;
  ToProto(value, &again);
  EXPECT_EQ(again.DebugString(), expected.DebugString());
}

// Methods are kept by their names: other texts are not.
void NameMethods(pb::StepFigures* figures) {
  figures->clear_attention_methods();
  figures->add_attention_methods("all-gather");
  figures->add_attention_methods("ulysses");
}

TEST(RouterCodecTest, KeepsEveryFieldOfARequest) {
  const auto message = Filled<pb::GenerateRequest>();
  ExpectSame(message, *FromProto(message));
}

TEST(RouterCodecTest, TellsUnsetFromZero) {
  pb::GenerateRequest message;
  EXPECT_FALSE(FromProto(message)->temperature.has_value());
  EXPECT_FALSE(FromProto(message)->top_k.has_value());
  message.set_temperature(0);
  message.set_top_k(0);
  message.set_seed(0);
  const GenerateRequest request = *FromProto(message);
  EXPECT_EQ(request.temperature, 0.0);
  EXPECT_EQ(request.top_k, 0);
  EXPECT_EQ(request.seed, 0u);
  ExpectSame(message, request);
}

TEST(RouterCodecTest, RefusesADeadlineThatIsNone) {
  pb::GenerateRequest message;
  message.set_deadline_ms(0);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(message).status()));
}

TEST(RouterCodecTest, KeepsEveryFieldOfALastChunk) {
  auto message = Filled<pb::GenerateResponse>();
  message.mutable_exactness()->set_exact(false);  // as its fields say
  message.clear_config_hash();                    // the router's to add
  NameMethods(message.mutable_timing()->mutable_figures());
  ExpectSame(message, *FromProto(message));
}

TEST(RouterCodecTest, TakesAnswersThatAreNotExactAtTheirWord) {
  pb::GenerateResponse message;
  message.set_finish_reason(pb::FINISH_REASON_STOP);
  message.mutable_exactness()->set_exact(false);
  EXPECT_FALSE(FromProto(message)->exactness.exact());
}

TEST(RouterCodecTest, RefusesEnumsThatAreUnspecifiedOrUnknown) {
  pb::GenerateResponse chunk;
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(chunk).status()));
  chunk.set_finish_reason(static_cast<pb::FinishReason>(77));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(chunk).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(pb::ExplainResponse()).status()));
}

TEST(RouterCodecTest, KeepsEveryFieldOfARoute) {
  const auto request = Filled<pb::RouteRequest>();
  ExpectSame(request, FromProto(request));
  auto response = Filled<pb::RouteResponse>();
  response.set_top_k(1);  // two tokens
  response.set_num_experts(2);
  ExpectSame(response, *FromProto(response));
}

TEST(RouterCodecTest, RefusesRoutesWhoseSizesDoNotFit) {
  auto response = Filled<pb::RouteResponse>();
  response.set_top_k(2);
  EXPECT_THAT(std::string(FromProto(response).status().message()), HasSubstr("expert_ids has 2"));
  response.set_top_k(1);
  response.set_num_experts(3);
  EXPECT_THAT(std::string(FromProto(response).status().message()), HasSubstr("load has 2"));
}

TEST(RouterCodecTest, KeepsRowsAndRefusesWhatIsNone) {
  pb::ForwardRequest request;
  request.set_layer(3);
  request.set_num_rows(2);
  request.set_hidden_size(4);
  request.set_config_hash("c");
  request.set_rows(std::string(16, 'x'));
  ExpectSame(request, *FromProto(request));
  request.set_num_rows(3);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(request).status()));
  request.set_num_rows(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(request).status()));
  request.set_num_rows(int64_t{1} << 62);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(request).status()));
}

TEST(RouterCodecTest, KeepsEveryFieldOfWhatARouterSaysOfItself) {
  auto model = Filled<pb::GetModelInfoResponse>();
  model.mutable_default_sampling()->clear_seed();
  model.mutable_default_sampling()->clear_max_tokens();
  ExpectSame(model, FromProto(model));
  auto server = Filled<pb::GetServerInfoResponse>();
  NameMethods(server.mutable_figures());
  ExpectSame(server, FromProto(server));
  auto load = Filled<pb::GetExpertLoadResponse>();
  load.set_num_experts(1);
  ExpectSame(load, *FromProto(load));
  load.set_num_experts(2);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(load).status()));
}

TEST(RouterCodecTest, KeepsEveryFieldOfBiasesAndTheirChanges) {
  const auto table = Filled<pb::GetBiasResponse>();
  ExpectSame(table, *FromProto(table));
  auto crooked = table;
  crooked.mutable_layers(0)->add_bias(1);
  EXPECT_TRUE(absl::IsInvalidArgument(FromProto(crooked).status()));
  const auto update = Filled<pb::UpdateBiasRequest>();
  ExpectSame(update, FromProto(update));
}

TEST(RouterCodecTest, KeepsEveryFieldOfAPlacementAndRefusesServicesThatAreNotThere) {
  auto table = Filled<pb::GetPlacementResponse>();
  table.set_num_experts(2);
  for (pb::PlacedLayer& layer : *table.mutable_layers()) {
    for (pb::Replicas& id : *layer.mutable_ids()) {
      id.set_services(0, 1);
      id.set_services(1, 0);
    }
  }
  ExpectSame(table, *FromProto(table));
  auto untold = table;
  untold.mutable_layers(0)->mutable_ids(0)->clear_served();
  EXPECT_EQ(FromProto(untold)->layers[0].served_of[0], std::vector<int64_t>(2));
  untold.mutable_layers(0)->mutable_ids(0)->add_served(3);
  EXPECT_THAT(std::string(FromProto(untold).status().message()), HasSubstr("1 of 2 services"));
  table.mutable_layers(1)->mutable_ids(0)->set_services(1, 2);
  EXPECT_THAT(std::string(FromProto(table).status().message()), HasSubstr("names service 2 of 2"));
  table.set_num_experts(3);
  EXPECT_THAT(std::string(FromProto(table).status().message()), HasSubstr("2 ids of 3 experts"));
}

TEST(RouterCodecTest, KeepsAFailureWithItsHint) {
  Explanation explanation;
  explanation.request_id = "a";
  explanation.state = RequestState::kFailed;
  explanation.failure = WithHint(absl::UnavailableError("gone"), "wait");
  pb::ExplainResponse message;
  ToProto(explanation, &message);
  const Explanation again = *FromProto(message);
  EXPECT_EQ(again.state, RequestState::kFailed);
  EXPECT_TRUE(absl::IsUnavailable(again.failure));
  EXPECT_EQ(HintOf(again.failure), "wait");
}

}  // namespace
}  // namespace moebius
