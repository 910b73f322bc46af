// SPDX-License-Identifier: Apache-2.0
#include <clocale>
#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

#include "moebius/model/config_parser.h"
#include "moebius/model/json.h"
#include "tests/support/mini_checkpoint.h"
#include "tests/support/skip.h"

namespace moebius {
namespace {

/// A locale with a decimal comma, made in a folder of the test's own: a fresh system has none.
class CommaLocale {
 public:
  CommaLocale() {
    const std::string command =
        "localedef -i de_DE -f UTF-8 " + folder_.File("de_DE.UTF-8") + " >/dev/null 2>&1";
    if (std::system(command.c_str()) != 0) return;
    setenv("LOCPATH", folder_.path().c_str(), 1);
    is_set_ = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr &&
              std::string(std::localeconv()->decimal_point) == ",";
  }
  ~CommaLocale() {
    std::setlocale(LC_ALL, "C");
    unsetenv("LOCPATH");
  }
  bool is_set() const { return is_set_; }

 private:
  TemporaryFolder folder_;
  bool is_set_ = false;
};

TEST(LocaleTest, ReadsAndWritesNumbersWithAPointWhateverTheLocale) {
  const CommaLocale locale;
  if (!locale.is_set()) MOEBIUS_SKIP("localedef cannot make a locale with a decimal comma");
  EXPECT_EQ(std::strtod("1.5", nullptr), 1.0) << "the locale must be in force";
  const absl::StatusOr<Json> json = Json::Parse("[1000000.5, 1e-6, -2.5e+3]", "x.json");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->elements()[0].number(), 1000000.5);
  EXPECT_EQ(json->elements()[1].number(), 1e-6);
  EXPECT_EQ(json->elements()[2].number(), -2500.0);
  EXPECT_EQ(json->ToCanonicalText(), "[1000000.5,1e-06,-2500]");
  EXPECT_FALSE(Json::Parse("1,5", "x.json").ok());

  MiniCheckpoint mini;
  mini.config.Set("rope_theta", Json::Number(1000000.5));
  const absl::StatusOr<ModelConfig> config = ParseModelConfig(mini.config.ToCanonicalText());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->attention.rope.theta, 1000000.5);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
}

}  // namespace
}  // namespace moebius
