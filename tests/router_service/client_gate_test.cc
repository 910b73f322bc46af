// SPDX-License-Identifier: Apache-2.0
#include "router_service/client_gate.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "moebius/base/replace_file.h"
#include "moebius/rpc/api_key.h"
#include "tests/support/metric_values.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kHashOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

std::string ListOf(absl::string_view clients) {
  return absl::StrCat("{\"clients\": [", clients, "]}");
}

TEST(ClientListTest, HashesAsTheWorldDoes) {
  EXPECT_EQ(HashKey("abc"), kHashOfAbc);  // FIPS 180-2, appendix B.1
  EXPECT_EQ(HashKey("").substr(0, 8), "e3b0c442");
}

TEST(ClientListTest, DrawsKeysThatDiffer) {
  const std::string key = *DrawKey();
  EXPECT_TRUE(absl::StartsWith(key, "moebius_")) << key;
  EXPECT_GE(key.size(), 50u);
  EXPECT_LE(key.size(), kMaxKeyBytes);
  EXPECT_NE(key, *DrawKey());
}

TEST(ClientListTest, ReadsBackWhatItWrites) {
  const std::vector<ClientEntry> clients = {{"a", {HashKey("1"), HashKey("2")}, 3, 4},
                                            {"b.c-d_0", {HashKey("5")}, 0, 0}};
  const auto read = ParseClientList(FormatClientList(clients), "list");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ((*read)[0].key_hashes, clients[0].key_hashes);
  EXPECT_EQ((*read)[0].max_in_flight, 3);
  EXPECT_EQ((*read)[0].tokens_per_minute, 4);
  EXPECT_EQ((*read)[1].name, "b.c-d_0");
}

TEST(ClientListTest, RefusesWhatIsNoList) {
  const std::string hash = absl::StrCat("\"keys_sha256\": [\"", kHashOfAbc, "\"]");
  const auto refused = [](const std::string& text) {
    const auto list = ParseClientList(text, "keys.json");
    EXPECT_TRUE(absl::IsInvalidArgument(list.status())) << text << ": " << list.status();
    return std::string(list.status().message());
  };
  EXPECT_THAT(refused("[]"), HasSubstr("keys.json: it is not"));
  EXPECT_THAT(refused("{\"clients\": 1}"), HasSubstr("it is not"));
  EXPECT_THAT(refused("{\"clients\": [], \"more\": 1}"), HasSubstr("alone"));
  EXPECT_THAT(refused(ListOf("1")), HasSubstr("a client is"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"a\"}")), HasSubstr("a has no key"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"A\", " + hash + "}")), HasSubstr("the name 'A'"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"\", " + hash + "}")), HasSubstr("the name ''"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"a\", \"keys_sha256\": [\"abc\"]}")), HasSubstr("64"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"a\", \"keys_sha256\": []}")), HasSubstr("1 to 4"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"a\", " + hash + ", \"limit\": 3}")), HasSubstr("limit"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"a\", " + hash + ", \"max_in_flight\": -1}")),
              HasSubstr("max_in_flight is no whole number"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"a\", " + hash + ", \"tokens_per_minute\": 1.5}")),
              HasSubstr("tokens_per_minute is no whole number"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"a\", " + hash + "}, {\"name\": \"a\", " + hash + "}")),
              HasSubstr("the client a is there twice"));
  EXPECT_THAT(refused(ListOf("{\"name\": \"a\", " + hash + "}, {\"name\": \"b\", " + hash + "}")),
              HasSubstr("a key of b is there twice"));
  std::string many;
  for (size_t i = 0; i <= kMaxClients; ++i) {
    absl::StrAppend(&many, i == 0 ? "" : ", ", "{\"name\": \"c", i, "\", \"keys_sha256\": [\"",
                    HashKey(absl::StrCat(i)), "\"]}");
  }
  EXPECT_THAT(refused(ListOf(many)), HasSubstr("the limit is 256"));
}

class ClientGateTest : public testing::Test {
 protected:
  ClientGateTest()
      : gate_(path_, clock_, [this](const std::string& notice) { notices_.push_back(notice); }) {}
  ~ClientGateTest() override { std::remove(path_.c_str()); }

  void Write(const std::vector<ClientEntry>& clients) { WriteText(FormatClientList(clients)); }
  void WriteText(const std::string& text) { ASSERT_TRUE(ReplaceFile(path_, text, 0600).ok()); }

  static std::string Bearer(const std::string& key) { return "Bearer " + key; }

  const std::string path_ =
      absl::StrCat(testing::TempDir(), "/clients.", testing::UnitTest::GetInstance()->random_seed(),
                   ".", reinterpret_cast<uintptr_t>(this), ".json");
  FakeClock clock_;
  std::vector<std::string> notices_;
  ClientGate gate_;
};

TEST_F(ClientGateTest, LetsInWhoseKeyIsKnown) {
  Write({{"a", {HashKey("old"), HashKey("new")}, 0, 0}});
  ASSERT_TRUE(gate_.Load().ok());
  EXPECT_EQ((*gate_.Enter(Bearer("old")))->client(), "a");
  EXPECT_EQ((*gate_.Enter("bearer new"))->client(), "a");
  EXPECT_TRUE(gate_.Check(Bearer("new")).ok());
  for (const std::string& wrong :
       {std::string(), Bearer(""), Bearer("other"), std::string("Basic old"), std::string("old"),
        Bearer(HashKey("old")), Bearer(std::string(kMaxKeyBytes + 1, 'x'))}) {
    const absl::Status status = gate_.Enter(wrong).status();
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << wrong << ": " << status;
    EXPECT_THAT(HintOf(status), HasSubstr("MOEBIUS_API_KEY"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("other")));
  }
}

TEST_F(ClientGateTest, BoundsCallsInFlightOfOneClientAlone) {
  Write({{"a", {HashKey("ka")}, 2, 0}, {"b", {HashKey("kb")}, 1, 0}});
  ASSERT_TRUE(gate_.Load().ok());
  auto first = gate_.Enter(Bearer("ka"));
  auto second = gate_.Enter(Bearer("ka"));
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = gate_.Enter(Bearer("ka")).status();
  EXPECT_TRUE(absl::IsResourceExhausted(third)) << third;
  EXPECT_THAT(std::string(third.message()), HasSubstr("client a has 2 calls in flight"));
  EXPECT_TRUE(gate_.Enter(Bearer("kb")).ok());
  first->reset();
  EXPECT_TRUE(gate_.Enter(Bearer("ka")).ok());
}

TEST_F(ClientGateTest, RefusesWhileTheTokensOfTheMinuteAreUsedUp) {
  Write({{"a", {HashKey("k")}, 0, 600}});
  ASSERT_TRUE(gate_.Load().ok());
  {
    const auto pass = *gate_.Enter(Bearer("k"));
    pass->Charge(599);
    EXPECT_TRUE(gate_.Enter(Bearer("k")).ok()) << "one is left";
    pass->Charge(101);  // what runs is not cut short
  }
  const absl::Status refused = gate_.Enter(Bearer("k")).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_TRUE(IsRetryable(refused));
  // 101 tokens at 10 a second.
  EXPECT_EQ(HintOf(refused), "try again in 11 s");
  clock_.Advance(absl::Seconds(10));
  EXPECT_FALSE(gate_.Enter(Bearer("k")).ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(gate_.Enter(Bearer("k")).ok());
  // Never more than a minute's worth.
  clock_.Advance(absl::Hours(5));
  (*gate_.Enter(Bearer("k")))->Charge(600);
  EXPECT_FALSE(gate_.Enter(Bearer("k")).ok());
}

TEST_F(ClientGateTest, TakesUpAChangedListAndKeepsCallsAndTokens) {
  Write({{"a", {HashKey("ka")}, 1, 60}, {"b", {HashKey("kb")}, 0, 0}});
  ASSERT_TRUE(gate_.Load().ok());
  const auto pass = *gate_.Enter(Bearer("ka"));
  pass->Charge(60);
  gate_.ReloadIfChanged();
  EXPECT_EQ(notices_.size(), 1u) << "nothing has changed";
  Write({{"a", {HashKey("next")}, 2, 60}});
  gate_.ReloadIfChanged();
  EXPECT_THAT(notices_.back(), HasSubstr("1 clients may call"));
  EXPECT_TRUE(absl::IsUnauthenticated(gate_.Check(Bearer("ka"))));
  EXPECT_TRUE(absl::IsUnauthenticated(gate_.Check(Bearer("kb"))));
  EXPECT_THAT(std::string(gate_.Enter(Bearer("next")).status().message()),
              HasSubstr("tokens a minute"));
  Write({{"a", {HashKey("next")}, 1, 0}});
  gate_.ReloadIfChanged();
  EXPECT_THAT(std::string(gate_.Enter(Bearer("next")).status().message()),
              HasSubstr("1 calls in flight"));
}

TEST_F(ClientGateTest, KeepsItsListWhereTheFileCannotBeRead) {
  EXPECT_TRUE(absl::IsNotFound(gate_.Load()));
  Write({{"a", {HashKey("k")}, 0, 0}});
  ASSERT_TRUE(gate_.Load().ok());
  WriteText("{\"clients\": [");
  gate_.ReloadIfChanged();
  gate_.ReloadIfChanged();
  ASSERT_EQ(notices_.size(), 2u) << "said once";
  EXPECT_THAT(notices_.back(), HasSubstr("stays as it was"));
  EXPECT_TRUE(gate_.Check(Bearer("k")).ok());
  std::remove(path_.c_str());
  gate_.ReloadIfChanged();
  EXPECT_TRUE(gate_.Check(Bearer("k")).ok());
  Write({});
  gate_.ReloadIfChanged();
  EXPECT_TRUE(absl::IsUnauthenticated(gate_.Check(Bearer("k"))));
}

TEST_F(ClientGateTest, TellsOfStrangersByTheirHostAndNeverTheirKeys) {
  Write({{"a", {HashKey("k")}, 0, 0}});
  ASSERT_TRUE(gate_.Load().ok());
  std::vector<LogSource> sources;
  std::vector<std::string> told;
  gate_.SetOnStranger([&](const LogSource& source, const std::string& notice) {
    sources.push_back(source);
    told.push_back(notice);
  });
  EXPECT_FALSE(gate_.Enter(Bearer("secret"), "ipv4:10.0.0.9:4711").ok());
  EXPECT_FALSE(gate_.Check("", "ipv4:10.0.0.9:4712").ok());
  EXPECT_TRUE(gate_.Enter(Bearer("k"), "ipv4:10.0.0.9:4713").ok());
  EXPECT_THAT(told, ElementsAre("refused a call of 10.0.0.9: the call's key is not known here",
                                "refused a call of 10.0.0.9: this router wants a key, the call has "
                                "none"));
  for (const LogSource& source : sources) EXPECT_EQ(source.peer, "10.0.0.9");
}

TEST_F(ClientGateTest, NoChargeLocksAClientOutForGood) {
  Write({{"a", {HashKey("k")}, 0, 60}});
  ASSERT_TRUE(gate_.Load().ok());
  const auto pass = *gate_.Enter(Bearer("k"));
  for (int i = 0; i < 4; ++i) pass->Charge(INT64_MAX);  // sums stay numbers
  pass->Charge(-5);
  Registry registry;
  const auto handle =
      registry.AddCollector([this](MetricWriter& writer) { gate_.WriteMetrics(writer); });
  EXPECT_EQ(ValueOf(registry.Scrape(), "moebius_client_tokens_total{client=\"a\"}"),
            4 * 4294967296.0);
}

}  // namespace
}  // namespace moebius
