// `retort check --links` on one host: what it measures, and what it says when it cannot.
#include <gtest/gtest.h>

#include <regex>

#include "tests/recipes/run_support/run_support.h"

namespace retort::test {
namespace {

class LinkRun : public ::testing::Test {
 protected:
  LinkRun() {
    recipe_.teacher = "teacher";
    recipe_.distill = {{"payload", "hidden_states"}};
  }
  CommandResult check(std::vector<std::string> more) {
    std::vector<std::string> args{"check", write_recipe(folder_.path(), recipe_).string(),
                                  "--links"};
    args.insert(args.end(), more.begin(), more.end());
    return retort(std::move(args), std::chrono::seconds(240));
  }

  const TemporaryFolder folder_;
  GoldenRecipe recipe_;
};

// 4 rows of 64 tokens, 64 numbers of 4 bytes each: 64 KiB, two of which are a step's.
TEST_F(LinkRun, MeasuresBothWaysOfEncryptionInOneTable) {
  recipe_.accumulation = 2;
  const CommandResult result = check({});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("all checks passed"), std::string::npos) << result.output;
  const std::regex head(R"(link teacher -> student: answers of (\S+) MiB, at most (\S+) MiB a)");
  std::smatch sizes;
  ASSERT_TRUE(std::regex_search(result.output, sizes, head)) << result.output;
  EXPECT_NEAR(std::stod(sizes[2]), 2 * std::stod(sizes[1]), 0.01) << result.output;

  // p50, p99, MB/s, MiB a step, seconds a step
  const std::regex row(R"((on|off \*) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)\n)");
  std::vector<std::string> kinds;
  for (std::sregex_iterator one(result.output.begin(), result.output.end(), row), end; one != end;
       ++one) {
    kinds.push_back((*one)[1]);
    const double p50 = std::stod((*one)[2]), p99 = std::stod((*one)[3]);
    EXPECT_GT(p50, 0) << result.output;
    EXPECT_GE(p99, p50) << result.output;
    const double rate = std::stod((*one)[4]), step = std::stod((*one)[5]);
    EXPECT_NEAR(std::stod((*one)[6]), step * 1.048576 / rate, 0.01 + step / rate) << result.output;
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"on", "off *"})) << result.output;
  EXPECT_FALSE(fs::exists(folder_ / "run"));
}

TEST_F(LinkRun, SaysWhyALinkCannotBeHad) {
  const CommandResult result = check({"rpc.channels=[basic]", "rpc.max_message_bytes=1KiB"});
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_NE(result.output.find("failed: "), std::string::npos) << result.output;
}

TEST_F(LinkRun, RefusesARecipeWhoseStudentIsAlone) {
  recipe_.teacher.clear();
  const CommandResult result = check({});
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_NE(result.output.find("no role that the student talks with"), std::string::npos)
      << result.output;
}

}  // namespace
}  // namespace retort::test
