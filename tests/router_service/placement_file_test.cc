// SPDX-License-Identifier: Apache-2.0
#include "router_service/placement_file.h"

#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "moebius/base/error.h"
#include "tests/support/mini_checkpoint.h"

namespace moebius {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Layer 0 is dense with 3 slices; layers 1 and 2 have 8 experts and one shared slice.
PlacementShape Shape() { return PlacementShape::Make(8, {false, true, true}, 1, 3); }

absl::StatusOr<Placement> Parse(const std::string& text, int32_t num_services = 3) {
  return ParsePlacement(text, "p.json", Shape(), num_services);
}

std::string Message(const std::string& text, int32_t num_services = 3) {
  const auto placement = Parse(text, num_services);
  EXPECT_FALSE(placement.ok()) << text;
  return std::string(placement.status().message());
}

std::vector<int> Services(const Placement& placement, int32_t layer, int32_t id) {
  std::vector<int> services;
  for (const ServiceId service : placement.Services(LayerId(layer), ExpertId(id))) {
    services.push_back(service.value());
  }
  return services;
}

TEST(PlacementFileTest, RulesSayWhoHoldsAnExpertThePreferredFirst) {
  const auto placement = Parse(R"({"services": 3, "rules": [
    {"experts": "0-3", "services": [0, 1]},
    {"experts": [4, "5-6"], "services": [2, 1]},
    {"experts": 7, "services": "0-2"}]})");
  ASSERT_TRUE(placement.ok()) << placement.status();
  for (const int32_t layer : {1, 2}) {
    EXPECT_THAT(Services(*placement, layer, 0), ElementsAre(0, 1));
    EXPECT_THAT(Services(*placement, layer, 3), ElementsAre(0, 1));
    EXPECT_THAT(Services(*placement, layer, 4), ElementsAre(2, 1));
    EXPECT_THAT(Services(*placement, layer, 6), ElementsAre(2, 1));
    EXPECT_THAT(Services(*placement, layer, 7), ElementsAre(0, 1, 2));
  }
  EXPECT_EQ(placement->num_services(), 3);
}

TEST(PlacementFileTest, ARuleOfALayerHoldsInsteadOfTheOthersWhateverTheOrder) {
  const std::string of_layer = R"({"experts": [1, 2], "layers": 2, "services": 2})";
  const std::string general = R"({"experts": "0-7", "services": [0, 1]})";
  for (const std::string& rules : {of_layer + "," + general, general + "," + of_layer}) {
    const auto placement = Parse(R"({"services": 3, "rules": [)" + rules + "]}");
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_THAT(Services(*placement, 1, 1), ElementsAre(0, 1));
    EXPECT_THAT(Services(*placement, 2, 1), ElementsAre(2));
    EXPECT_THAT(Services(*placement, 2, 3), ElementsAre(0, 1));
  }
}

TEST(PlacementFileTest, SlicesAreAsWithoutAFileOrWhereTheListsSay) {
  const std::string rules = R"("rules": [{"experts": "0-7", "services": [0, 1, 2]}])";
  const auto by_default = Parse(R"({"services": 3, )" + rules + "}");
  ASSERT_TRUE(by_default.ok()) << by_default.status();
  EXPECT_EQ(Services(*by_default, 1, 8).size(), 3u);
  EXPECT_EQ(Services(*by_default, 0, 8).size(), 2u);
  const auto said = Parse(R"({"services": 3, "shared": [2, 0], "dense": [1, 2], )" + rules + "}");
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_THAT(Services(*said, 0, 8), ElementsAre(1, 2));
  EXPECT_THAT(Services(*said, 0, 9), ElementsAre(2, 1));
  EXPECT_THAT(Services(*said, 1, 8), ElementsAre(0, 2));
  EXPECT_THAT(Services(*said, 2, 8), ElementsAre(2, 0));
}

TEST(PlacementFileTest, EachBrokenRuleIsNamedWithItsPlace) {
  const auto with_rules = [](const std::string& rules) {
    return Message(R"({"services": 3, "rules": [)" + rules + "]}");
  };
  EXPECT_THAT(with_rules(R"({"experts": "0-6", "services": [0]})"),
              HasSubstr("p.json: rules: none names expert 7 of layer 1"));
  EXPECT_THAT(with_rules(R"({"experts": "0-7", "layers": [1], "services": [0]})"),
              HasSubstr("none names expert 0 of layer 2"));
  EXPECT_THAT(with_rules(R"({"experts": "0-8", "services": [0]})"),
              HasSubstr("p.json: rules[0].experts: 8 is not in [0, 8)"));
  EXPECT_THAT(with_rules(R"({"experts": [0, -1], "services": [0]})"),
              HasSubstr("p.json: rules[0].experts[1]: -1 is not in [0, 8)"));
  EXPECT_THAT(with_rules(R"({"experts": "0-7", "services": [0, 3]})"),
              HasSubstr("p.json: rules[0].services[1]: 3 is not in [0, 3)"));
  EXPECT_THAT(with_rules(R"({"experts": "0-7", "services": [1, 0, 1]})"),
              HasSubstr("p.json: rules[0].services[2]: 1 is there already"));
  EXPECT_THAT(with_rules(R"({"experts": "0-7", "services": []})"),
              HasSubstr("p.json: rules[0].services: is an empty list"));
  EXPECT_THAT(with_rules(R"({"experts": "0-7", "layers": [0], "services": [0]})"),
              HasSubstr("p.json: rules[0].layers: layer 0 has no experts"));
  EXPECT_THAT(with_rules(R"({"experts": "0-7", "layers": [3], "services": [0]})"),
              HasSubstr("p.json: rules[0].layers[0]: 3 is not in [0, 3)"));
  EXPECT_THAT(with_rules(R"({"experts": "0-7", "services": [0]}, {"experts": 3, "services": [1]})"),
              HasSubstr("p.json: rules[1]: names expert 3 of layer 1, as rules[0] does"));
  EXPECT_THAT(with_rules(R"({"experts": "0-7", "services": [0], "replicas": 2})"),
              HasSubstr("p.json: rules[0]: has no member \"replicas\""));
  EXPECT_THAT(with_rules(R"({"experts": "0-7"})"), HasSubstr("rules[0]: has no \"services\""));
  EXPECT_THAT(with_rules("7"), HasSubstr("p.json: rules[0]: is an integer, not an object"));
  for (const char* range : {"\"3-1\"", "\"a-b\"", "\"\"", "\"1-\"", "\"1-2-3\"", "1.5", "null",
                            "99999999999", "\"0-99999999999999999999\""}) {
    EXPECT_THAT(with_rules(std::string(R"({"services": [0], "experts": )") + range + "}"),
                HasSubstr("p.json: rules[0].experts: "))
        << range;
  }
}

TEST(PlacementFileTest, TheWholeFileIsCheckedToo) {
  const std::string rules = R"("rules": [{"experts": "0-7", "services": [0, 1]}])";
  EXPECT_THAT(Message(R"({"services": 2, )" + rules + "}"),
              HasSubstr("p.json: services: is 2, --experts is 3"));
  EXPECT_THAT(Message("{" + rules + "}"),
              HasSubstr("p.json: services: is not the number of expert services"));
  EXPECT_THAT(Message(R"({"services": 3})"), HasSubstr("\"rules\" is not a list"));
  EXPECT_THAT(Message(R"({"services": 3, "shared": [0], "dense": [1], )" + rules + "}"),
              HasSubstr("p.json: service 2 holds nothing"));
  EXPECT_THAT(Message(R"({"services": 3, "shared": [0, 0], )" + rules + "}"),
              HasSubstr("p.json: shared[1]: 0 is there already"));
  EXPECT_THAT(Message(R"({"services": 3, "services": 3, )" + rules + "}"), HasSubstr("services"));
  EXPECT_THAT(Message("[]"), HasSubstr("p.json: is a list, not an object"));
  EXPECT_THAT(Message("{\"services\": 3,"), HasSubstr("p.json"));
  EXPECT_THAT(Message(""), HasSubstr("p.json"));
  EXPECT_THAT(Message(std::string(kMaxPlacementFileBytes + 1, ' ')), HasSubstr("p.json"));
}

TEST(PlacementFileTest, AFileIsReadOrNamed) {
  TemporaryFolder folder;
  const std::string path = folder.File("placement.json");
  EXPECT_EQ(ReadPlacementFile(path, Shape(), 1).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(path) << R"({"services": 1, "rules": [{"experts": "0-7", "services": 0}]})";
  EXPECT_TRUE(ReadPlacementFile(path, Shape(), 1).ok());
  std::ofstream(path) << std::string(kMaxPlacementFileBytes + 1, ' ');
  EXPECT_THAT(std::string(ReadPlacementFile(path, Shape(), 1).status().message()),
              HasSubstr("4194305 bytes; at most 4194304"));
  EXPECT_FALSE(ReadPlacementFile(folder.path(), Shape(), 1).ok());
}

}  // namespace
}  // namespace moebius
