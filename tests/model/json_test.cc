// SPDX-License-Identifier: Apache-2.0
#include "moebius/model/json.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using testing::HasSubstr;

std::string Refusal(absl::string_view text) {
  const absl::StatusOr<Json> json = Json::Parse(text, "x.json");
  if (json.ok()) return "accepted";
  EXPECT_EQ(json.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(json.status().message().substr(0, 7), "x.json:");
  return std::string(json.status().message());
}

TEST(JsonTest, ReadsEveryKindOfValue) {
  const absl::StatusOr<Json> json = Json::Parse(
      R"({"a": null, "b": [true, false], "c": -7, "d": 18446744073709551615, "e": 2.5e-3,
          "f": "\u00e9\n", "g": {}})",
      "x.json");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->Find("a")->kind(), Json::Kind::kNull);
  EXPECT_TRUE(json->Find("b")->elements()[0].boolean());
  EXPECT_FALSE(json->Find("b")->elements()[1].boolean());
  EXPECT_EQ(json->Find("c")->integer(), -7);
  EXPECT_EQ(json->Find("d")->kind(), Json::Kind::kLargeInteger);
  EXPECT_EQ(json->Find("d")->large_integer(), UINT64_MAX);
  EXPECT_EQ(json->Find("e")->number(), 2.5e-3);
  EXPECT_EQ(json->Find("f")->string(), "\xC3\xA9\n");
  EXPECT_EQ(json->Find("g")->kind(), Json::Kind::kObject);
  EXPECT_EQ(json->Find("absent"), nullptr);
}

TEST(JsonTest, KeepsTheLimitsOfSignedIntegersExactly) {
  EXPECT_EQ(Json::Parse("-9223372036854775808", "x")->integer(), INT64_MIN);
  EXPECT_EQ(Json::Parse("9223372036854775807", "x")->integer(), INT64_MAX);
  EXPECT_EQ(Json::Parse("9223372036854775808", "x")->kind(), Json::Kind::kLargeInteger);
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  const char* const texts[] = {"",          " ",       "{",          "}",           "{\"a\":}",
                               "{\"a\" 1}", "[1,]",    "{\"a\":1,}", "nul",         "NaN",
                               "Infinity",  "+1",      "01",         "1.",          ".5",
                               "'a'",       "// x\n1", "{} {}",      "\"\x01\"",    "\"a",
                               "\"\\x\"",   "[1 2]",   "{1:2}",      "\"\\ud800\"", "1e"};
  for (const char* text : texts) {
    EXPECT_THAT(Refusal(text), HasSubstr("not valid JSON")) << text;
  }
}

TEST(JsonTest, RefusesInvalidUtf8) {
  for (const char* text :
       {"\"\xFF\"", "\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF5\x80\x80\x80\"", "{\"\xC3\": 1}"}) {
    EXPECT_THAT(Refusal(text), HasSubstr("not valid JSON"));
  }
}

TEST(JsonTest, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_THAT(Refusal(R"({"a": 1, "a": 1})"), HasSubstr("duplicate key \"a\""));
  EXPECT_THAT(Refusal(R"([{"b": {"c": 1, "d": 2, "c": 3}}])"), HasSubstr("duplicate key \"c\""));
  EXPECT_EQ(Refusal(R"({"a": {"a": 1}, "b": {"a": 2}})"), "accepted");
}

TEST(JsonTest, RefusesNumbersThatDoNotFit) {
  for (const char* text : {"18446744073709551616", "-9223372036854775809", "1e999", "-1e999",
                           "100000000000000000000000000000000000000"}) {
    EXPECT_NE(Refusal(text), "accepted") << text;
  }
}

TEST(JsonTest, RefusesNestingBeyondTheLimitWithoutUsingTheStack) {
  EXPECT_EQ(Refusal(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_THAT(Refusal(std::string(65, '[') + std::string(65, ']')), HasSubstr("nested deeper"));
  EXPECT_THAT(Refusal(std::string(1'000'000, '[')), HasSubstr("nested deeper"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(Refusal(objects), HasSubstr("nested deeper"));
}

TEST(JsonTest, RefusesTextBeyondTheLimit) {
  EXPECT_FALSE(Json::Parse("[1, 2, 3]", "x.json", 8).ok());
  EXPECT_TRUE(Json::Parse("[1, 2, 3]", "x.json", 9).ok());
}

TEST(JsonTest, MessagesHoldNoControlCharactersOrInvalidBytes) {
  for (const char c : Refusal("{\"a\": \x1B\xFF}")) {
    EXPECT_GE(static_cast<unsigned char>(c), 0x20);
    EXPECT_LT(static_cast<unsigned char>(c), 0x7F);
  }
}

TEST(JsonTest, CanonicalTextIsOneSpellingOfAValue) {
  const Json a = *Json::Parse(R"({ "b" : [1, 2.50, 1e1], "a" : "x\u0001\"\\" })", "x");
  EXPECT_EQ(a.ToCanonicalText(), R"({"a":"x\u0001\"\\","b":[1,2.5,10]})");
  EXPECT_EQ(Json::Parse(a.ToCanonicalText(), "x")->ToCanonicalText(), a.ToCanonicalText());
  EXPECT_EQ(*Json::Parse(a.ToPrettyText(), "x")->Find("a"), *a.Find("a"));
}

TEST(JsonTest, WritesBytesThatAreNoUtf8AsReplacementCharacters) {
  const std::string text = Json::String("a\xFFö\xC3").ToCanonicalText();
  EXPECT_EQ(text, "\"a\xEF\xBF\xBDö\xEF\xBF\xBD\"");
  EXPECT_TRUE(Json::Parse(text, "again").ok());
}

TEST(JsonTest, NumbersReadBackAsTheyWere) {
  for (const double value : {1e-6, 2.827, 10000.0, 1e300, -0.1, 5e-324, 1e22}) {
    EXPECT_EQ(std::stod(FormatNumber(value)), value);
  }
  EXPECT_EQ(FormatNumber(0.1), "0.1");
}

}  // namespace
}  // namespace moebius
