// SPDX-License-Identifier: Apache-2.0
#include <clocale>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/answer.h"
#include "cli/arguments.h"
#include "cli/doctor_command.h"
#include "cli/error_output.h"
#include "cli/generate_command.h"
#include "cli/terminal.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/base/suggestion.h"
#include "moebius/model/json.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string WriteFile(const std::string& name, const std::string& text) {
  std::string path = absl::StrCat(testing::TempDir(), "moebius_cli_", name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(SuggestionTest, CountsLettersToChange) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("abc", ""), 3);
  EXPECT_EQ(EditDistance("genrate", "generate"), 1);
  EXPECT_EQ(EditDistance("modle", "model"), 1);  // neighbours swapped
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(SuggestionTest, NamesANearWordAndNoFarOne) {
  const std::vector<std::string> known = {"generate", "model", "doctor", "version"};
  EXPECT_EQ(NearestWord("genrate", known), "generate");
  EXPECT_EQ(NearestWord("docter", known), "doctor");
  EXPECT_EQ(NearestWord("frobnicate", known), "");
  EXPECT_EQ(NearestWord(std::string(100000, 'x'), known), "");
}

TEST(ArgumentsTest, ReadsNumbersWithoutTheLocale) {
  EXPECT_EQ(*ParseNumber("--top-p", "1.25"), 1.25);
  EXPECT_EQ(*ParseNumber("--top-p", "1e-6"), 1e-6);
  for (const char* bad : {"", "1,25", "abc", "1.5x", " 1", "nan", "inf", "1e999"}) {
    EXPECT_EQ(ParseNumber("--top-p", bad).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
  EXPECT_EQ(*ParseInteger("--top-k", "-3"), -3);
  EXPECT_FALSE(ParseInteger("--top-k", "3.0").ok());
  EXPECT_FALSE(ParseInteger("--top-k", "9223372036854775808").ok());
  EXPECT_EQ(*ParseUnsigned("--seed", "18446744073709551615"), UINT64_MAX);
  EXPECT_FALSE(ParseUnsigned("--seed", "-1").ok());
}

TEST(ArgumentsTest, ReadsSizesInPowersOf1024) {
  EXPECT_EQ(*ParseBytes("--kv-budget", "512MiB"), int64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("--kv-budget", "4G"), int64_t{4} << 30);
  EXPECT_EQ(*ParseBytes("--kv-budget", "1000"), 1000);
  for (const char* bad : {"", "0", "-1", "GiB", "1.5GiB", "99999999999GiB", "4 G", "4TiB"}) {
    EXPECT_FALSE(ParseBytes("--kv-budget", bad).ok()) << bad;
  }
}

TEST(ArgumentsTest, ReadsIdsFromAListOrAFile) {
  EXPECT_THAT(*ReadPromptIds("256,72,105"), ElementsAre(256, 72, 105));
  EXPECT_THAT(*ReadPromptIds("7"), ElementsAre(7));
  EXPECT_THAT(*ReadPromptIds(""), IsEmpty());
  EXPECT_THAT(*ReadPromptIds(WriteFile("ids.json", "[256, 72,\n105]\n")),
              ElementsAre(256, 72, 105));
  EXPECT_THAT(*ReadPromptIds(WriteFile("ids.txt", " 256 72\n\t105\n")), ElementsAre(256, 72, 105));
  EXPECT_THAT(*ReadPromptIds("4294967295"), ElementsAre(4294967295));
}

TEST(ArgumentsTest, RefusesIdsThatAreNoneWithTheirPlace) {
  const auto refused = [](const std::string& value) {
    const auto ids = ReadPromptIds(value);
    EXPECT_FALSE(ids.ok());
    return std::string(ids.status().message());
  };
  EXPECT_THAT(refused(WriteFile("ids.json", "[1, 2.5]")), HasSubstr("element 1"));
  EXPECT_THAT(refused(WriteFile("ids.json", "[1, \"x\"]")), HasSubstr("element 1"));
  EXPECT_FALSE(ReadPromptIds(WriteFile("ids.json", "[1, 2")).ok());
  EXPECT_THAT(refused(WriteFile("ids.txt", "1 two 3")), HasSubstr("two"));
  EXPECT_THAT(refused("no-such-file"), HasSubstr("no-such-file"));
  EXPECT_THAT(refused("99999999999999999999"), HasSubstr("out of range"));
  EXPECT_THAT(refused("1,,2"), HasSubstr("no id at position 1"));
  EXPECT_THAT(refused("1,"), HasSubstr("no id at position 1"));
  EXPECT_THAT(refused(WriteFile("ids.json", "[1, 18446744073709551615]")),
              HasSubstr("element 1 of the array is 18446744073709551615"));
  EXPECT_LT(refused(WriteFile("ids.txt", std::string(100000, 'x'))).size(), 500u);
}

TEST(ArgumentsTest, RefusesAFileBeyondTheLimit) {
  EXPECT_EQ(*ReadInput(WriteFile("ten", "0123456789"), 10), "0123456789");
  EXPECT_FALSE(ReadInput(WriteFile("ten", "0123456789"), 9).ok());
  EXPECT_FALSE(ReadInput(testing::TempDir(), 10).ok());  // a folder
}

TEST(ArgumentsTest, QuotesForAShellOnlyWhereNeeded) {
  EXPECT_EQ(ShellQuote("models/demo"), "models/demo");
  EXPECT_EQ(ShellQuote("two words"), "'two words'");
  EXPECT_EQ(ShellQuote("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellQuote(""), "''");
}

TEST(TerminalTest, AFrameFitsWhateverSizeTheTerminalHas) {
  const char* const frame = "one line\nzwei ▒█▒▒\nthree\nfour\n";
  EXPECT_EQ(FitTerminal(frame, "q quits", 80, 24), absl::StrCat(frame, "q quits\n"));
  EXPECT_EQ(FitTerminal(frame, "q quits", 8, 6), "one line\nzwei ▒█…\nthree\nfour\nq quits\n");
  EXPECT_EQ(FitTerminal(frame, "q quits", 80, 5), "one line\nzwei ▒█▒▒\n… 2 more lines\nq quits\n");
  EXPECT_EQ(FitTerminal(frame, "q quits", 1, 1), "…\n…\n");
  EXPECT_EQ(FitTerminal(frame, "q quits", 0, 0), "…\n…\n");
  EXPECT_EQ(FitTerminal("", "q quits", 80, 24), "\nq quits\n");
}

TEST(TerminalTest, DrawsBarsWithEighths) {
  EXPECT_EQ(DrawBar(0, 4), "····");
  EXPECT_EQ(DrawBar(0.5, 4), "██··");
  EXPECT_EQ(DrawBar(0.59375, 4), "██▍·");
  EXPECT_EQ(DrawBar(1, 4), "████");
  EXPECT_EQ(DrawBar(7, 4), "████");
  EXPECT_EQ(DrawBar(-1, 4), "····");
}

TEST(TerminalTest, AProgressLineFitsIntoItsColumns) {
  const std::string detail = "192 of 4,001 tokens";
  EXPECT_EQ(ProgressLine("loading", 0.5, "1 of 2", 28), "loading ██▌··  50 %  1 of 2");
  EXPECT_EQ(ProgressLine("reading the prompt", 0.25, detail, 40), "reading the prompt  25 %");
  EXPECT_EQ(ProgressLine("reading the prompt", 0.25, detail, 10), " 25 %");
  EXPECT_EQ(ProgressLine("reading the prompt", 0.25, detail, 3), " 2");
  EXPECT_EQ(ProgressLine("reading the prompt", 0.25, detail, 0), "");
}

TEST(TerminalTest, WritesFiguresForPeople) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-1000), "-1,000");
  EXPECT_EQ(FormatRate(5210.4), "5,210");
  EXPECT_EQ(FormatRate(41.26), "41.3");
  EXPECT_EQ(FormatRate(8.126), "8.13");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(20700000), "20.7 MB");
}

TEST(ErrorOutputTest, PutsTheHintOnALineOfItsOwn) {
  const absl::Status status = WithHint(absl::NotFoundError("x is missing"), "look for it");
  EXPECT_EQ(FormatError(status), "error: x is missing\nhint: look for it");
  EXPECT_EQ(
      FormatErrorJson(status),
      R"({"code":"NOT_FOUND","hint":"look for it","message":"x is missing","retryable":false})");
}

TEST(ErrorOutputTest, ShowsControlCharactersInsteadOfObeyingThem) {
  EXPECT_EQ(EscapeControls("a\x1b[2Jb\n\tc\x7f"), "a\\x1b[2Jb\n\tc\\x7f");
  EXPECT_EQ(EscapeControls("Größe"), "Größe");
  EXPECT_EQ(EscapeControls("\xC2\x9B"
                           "2J"),
            "\\xc2\\x9b2J");  // CSI in one character
  EXPECT_EQ(EscapeControls("a\xFF"), "a\\xff");
}

TEST(ErrorOutputTest, WritesValidJsonWhateverTheBytesOfTheMessage) {
  EXPECT_THAT(FormatErrorJson(absl::NotFoundError("a\xFF\xC3")),
              HasSubstr("\"message\":\"a\xEF\xBF\xBD\xEF\xBF\xBD\""));
}

TEST(ErrorOutputTest, TellsTheCallersFaultFromTheHostsAndTheModels) {
  const absl::Status invalid = absl::InvalidArgumentError("x");
  EXPECT_EQ(ExitCodeOfOpen(invalid), kExitModel);
  EXPECT_EQ(ExitCodeOfOpen(absl::FailedPreconditionError("F16 would be rounded")), kExitModel);
  EXPECT_EQ(ExitCodeOfOpen(AsUsageError(invalid)), kExitUsage);
  EXPECT_EQ(ExitCodeOfOpen(AsHostError(invalid)), kExitHost);
  EXPECT_EQ(ExitCodeOfOpen(absl::ResourceExhaustedError("memory")), kExitHost);
  EXPECT_EQ(ExitCodeOfOpen(WithContext(AsUsageError(invalid), "y")), kExitUsage);
}

GenerateFlags DemoFlags() {
  GenerateFlags flags;
  flags.model = "m";
  flags.prompt = "x";
  return flags;
}

TEST(GenerateFlagsTest, LeaveUnsetWhatIsNotTyped) {
  const auto arguments = ParseGenerateFlags(DemoFlags());
  ASSERT_TRUE(arguments.ok());
  EXPECT_FALSE(arguments->request.temperature.has_value());
  EXPECT_FALSE(arguments->request.seed.has_value());
  EXPECT_FALSE(arguments->node.tier.has_value());
  EXPECT_EQ(arguments->node.num_threads, 0);
}

TEST(GenerateFlagsTest, CarryEveryValue) {
  GenerateFlags flags = DemoFlags();
  flags.max_tokens = "5";
  flags.temperature = "0";
  flags.top_k = "0";
  flags.top_p = "0.5";
  flags.seed = "18446744073709551615";
  flags.logprobs = "3";
  flags.stop = {"a", "b"};
  flags.stop_token_ids = {"7"};
  flags.threads = "2";
  flags.tier = "portable";
  flags.span = "64";
  flags.group_fill = "zero";
  flags.attention_sum = "per-degree";
  flags.attention_layout = "striped";
  flags.kv_budget = "1GiB";
  flags.chunk = "9";
  const auto arguments = ParseGenerateFlags(flags);
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(arguments->request.max_tokens, 5);
  EXPECT_EQ(arguments->request.temperature, 0);
  EXPECT_EQ(arguments->request.top_k, 0);
  EXPECT_EQ(arguments->request.top_p, 0.5);
  EXPECT_EQ(arguments->request.seed, UINT64_MAX);
  EXPECT_EQ(arguments->request.logprobs, 3);
  EXPECT_THAT(arguments->request.stop, ElementsAre("a", "b"));
  EXPECT_THAT(arguments->request.stop_token_ids, ElementsAre(7));
  EXPECT_EQ(arguments->node.num_threads, 2);
  EXPECT_EQ(arguments->node.tier, Tier::kPortable);
  EXPECT_EQ(arguments->node.span, 64);
  EXPECT_EQ(arguments->node.group_fill, GroupFill::kZero);
  EXPECT_EQ(arguments->node.attention_sum, "per-degree");
  EXPECT_EQ(arguments->node.attention_layout, "striped");
  EXPECT_EQ(arguments->node.kv_budget_bytes, int64_t{1} << 30);
  EXPECT_EQ(arguments->node.chunk_rows, 9);
}

TEST(GenerateFlagsTest, RefuseByNameWhatIsOutOfRange) {
  const auto refused_with = [](const char* name, auto set) {
    GenerateFlags flags = DemoFlags();
    set(flags);
    const auto arguments = ParseGenerateFlags(flags);
    EXPECT_FALSE(arguments.ok()) << name;
    EXPECT_THAT(std::string(arguments.status().message()), HasSubstr(name));
  };
  refused_with("--threads", [](GenerateFlags& flags) { flags.threads = "0"; });
  refused_with("--tier", [](GenerateFlags& flags) { flags.tier = "sse"; });
  refused_with("--group-fill", [](GenerateFlags& flags) { flags.group_fill = "one"; });
  refused_with("--dtype", [](GenerateFlags& flags) { flags.dtype = "fp8"; });
  refused_with("--chunk", [](GenerateFlags& flags) { flags.chunk = "0"; });
  refused_with("--seed", [](GenerateFlags& flags) { flags.seed = "-1"; });
  refused_with("no prompt", [](GenerateFlags& flags) { flags.prompt.reset(); });
  refused_with("more than one prompt", [](GenerateFlags& flags) { flags.prompt_ids = "1"; });
}

GenerateEvent Event(std::vector<int64_t> ids, bool finished) {
  GenerateEvent event;
  event.request_id = "r";
  event.token_ids = std::move(ids);
  event.completion_tokens = 4;
  event.prompt_tokens = 26;
  event.finished = finished;
  event.finish_reason = finished ? FinishReason::kLength : FinishReason::kNone;
  event.sampling.seed = 7;
  event.timing.prefill_seconds = 0.005;
  event.timing.decode_seconds = 0.01;
  return event;
}

TEST(AnswerTest, GivesWholeCharactersAsTheyBecomeCertain) {
  const auto tokenizer = MakeByteTokenizer(ModelConfig());
  Answer answer(tokenizer.get());
  EXPECT_EQ(answer.Add(Event({'a', 0xC3}, false)), "a");
  EXPECT_EQ(answer.Add(Event({0xB6}, false)), "ö");
  EXPECT_EQ(answer.Add(Event({0xE2}, true)), "\xEF\xBF\xBD");
  EXPECT_EQ(answer.text(), "aö\xEF\xBF\xBD");
  EXPECT_THAT(answer.token_ids(), ElementsAre('a', 0xC3, 0xB6, 0xE2));
}

TEST(AnswerTest, PrintsTheObjectThatScriptsRelyOn) {
  Answer answer(nullptr);
  answer.Add(Event({1, 2, 3, 4}, true));
  AnswerOrigin info;
  info.config_hash = "0123456789abcdef";
  const auto json = Json::Parse(FormatAnswerJson(answer, info), "answer");
  ASSERT_TRUE(json.ok());
  for (const char* key : {"request_id", "text", "token_ids", "prompt_tokens", "cached_tokens",
                          "completion_tokens", "finish_reason", "matched_stop", "seed",
                          "logits_hash", "tokens_hash", "config_hash", "exactness", "timing"}) {
    EXPECT_NE(json->Find(key), nullptr) << key;
  }
  for (const char* key :
       {"exact", "dropped", "rerouted", "missing_experts", "bias_override", "reasons"}) {
    EXPECT_NE(json->Find("exactness")->Find(key), nullptr) << key;
  }
  EXPECT_EQ(json->Find("finish_reason")->string(), "length");
  EXPECT_EQ(json->Find("matched_stop")->kind(), Json::Kind::kNull);
  EXPECT_NE(json->Find("timing")->Find("prefill_seconds"), nullptr);
  EXPECT_NE(json->Find("timing")->Find("decode_seconds"), nullptr);
}

TEST(AnswerTest, ClosesWithRatesTierThreadsAndSeed) {
  Answer answer(nullptr);
  answer.Add(Event({1, 2, 3, 4}, true));
  AnswerOrigin info;
  info.tier = "avx2";
  info.num_threads = 2;
  // The first token belongs to the prefill: three in ten milliseconds.
  EXPECT_EQ(FormatClosingLine(answer, info),
            "26 + 4 tokens   prefill 5,200 tok/s   decode 300 tok/s   avx2, 2 threads, seed 7");
}

TEST(DoctorTest, LooksAtEverythingAndChangesNothing) {
  const auto checks = *ExamineHost(DoctorFlags());
  std::vector<std::string> names;
  for (const DoctorCheck& check : checks) {
    names.push_back(check.name);
    EXPECT_NE(check.state, CheckState::kFault) << check.detail;
    EXPECT_FALSE(check.detail.empty());
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"kernels", "threads", "memory", "open files"}));
  DoctorFlags flags;
  flags.model = "/nonexistent";
  const auto with_model = *ExamineHost(flags);
  EXPECT_EQ(with_model.back().state, CheckState::kFault);
}

}  // namespace
}  // namespace moebius
