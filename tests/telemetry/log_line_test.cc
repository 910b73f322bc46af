// SPDX-License-Identifier: Apache-2.0
#include "moebius/telemetry/log_line.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace moebius {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

LogLine Line(std::vector<LogField> fields) {
  return {LogLevel::kWarning, absl::FromUnixMillis(1767323045678), "a peer is suspect",
          std::move(fields)};
}

TEST(LogLineTest, WritesTextForPeople) {
  EXPECT_EQ(FormatLogLine(Line({{"peer", "router"}, {"step", 12}, {"seconds", 0.5}}), "expert-2",
                          LogFormat::kText),
            "2026-01-02T03:04:05.678Z warning expert-2: a peer is suspect peer=\"router\" step=12 "
            "seconds=0.5\n");
}

TEST(LogLineTest, WritesJsonForPrograms) {
  EXPECT_EQ(FormatLogLine(Line({{"request_id", "r-1"}, {"step", uint64_t{1} << 63}, {"hit", true}}),
                          "router", LogFormat::kJson),
            "{\"time\":\"2026-01-02T03:04:05.678Z\",\"level\":\"warning\",\"name\":\"router\","
            "\"message\":\"a peer is suspect\",\"request_id\":\"r-1\","
            "\"step\":9223372036854775808,\"hit\":true}\n");
}

TEST(LogLineTest, LetsNobodyBeginALineOfTheirOwn) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string line = FormatLogLine(
        Line({{"request_id", "x\" }\n2026 error router: all is lost\r\x1b[2J\x7f"}}), "e", format);
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_THAT(line,
                HasSubstr("x\\\" }\\n2026 error router: all is lost\\u000d\\u001b[2J\\u007f"));
  }
}

TEST(LogLineTest, KeepsGoodUtf8AndReplacesTheRest) {
  const std::string line = FormatLogLine(
      Line({{"a", "é€😀"}, {"b", "\xC0\xAF\xED\xA0\x80\xF5\xE2\x82"}}), "e", LogFormat::kJson);
  EXPECT_THAT(line, HasSubstr("\"a\":\"é€😀\""));
  EXPECT_THAT(line,
              HasSubstr("\"b\":\"\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\\ufffd\""));
}

TEST(LogLineTest, WritesWhatIsNoJsonNumberAsText) {
  const std::string line = FormatLogLine(Line({{"a", std::numeric_limits<double>::infinity()},
                                               {"b", std::numeric_limits<double>::quiet_NaN()}}),
                                         "e", LogFormat::kJson);
  EXPECT_THAT(line, HasSubstr("\"a\":\"inf\""));
  EXPECT_THAT(line, HasSubstr("\"b\":\"nan\""));
}

TEST(LogLineTest, StaysWithinOneWriteWhateverItIsTold) {
  for (const LogFormat format : {LogFormat::kText, LogFormat::kJson}) {
    const std::string worst(100000, '\x01');
    LogLine line = Line({{"a", worst}, {"b", worst}, {"c", worst}, {"d", worst}});
    line.sentence = worst;
    const std::string text = FormatLogLine(line, worst, format);
    EXPECT_LE(text.size(), kMaxLogLineBytes);
    EXPECT_THAT(text, HasSubstr("..."));
    EXPECT_THAT(text, Not(HasSubstr("d=")));
    EXPECT_THAT(text, EndsWith(format == LogFormat::kJson ? ",\"cut\":true}\n" : " cut=true\n"));
  }
}

TEST(LogLineTest, ReadsItsNames) {
  LogLevel level = LogLevel::kInfo;
  EXPECT_TRUE(ParseLogLevel("error", &level));
  EXPECT_EQ(level, LogLevel::kError);
  EXPECT_FALSE(ParseLogLevel("loud", &level));
  LogFormat format = LogFormat::kText;
  EXPECT_TRUE(ParseLogFormat("json", &format));
  EXPECT_EQ(format, LogFormat::kJson);
  EXPECT_FALSE(ParseLogFormat("xml", &format));
}

}  // namespace
}  // namespace moebius
