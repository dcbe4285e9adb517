#include "recipes/rewards/options.h"

#include <limits>
#include <string>
#include <vector>

#include "tests/rewards/reward_support.h"

namespace retort::rewards {
namespace {
using std::chrono::seconds;
using test::message_of;

TEST(RewardOptions, AcceptsWhatEachTypeNeeds) {
  const RewardOptions good[] = {
      {},
      {.type = RewardType::kExactMatch, .weight = -0.5, .name = "same"},
      {.type = RewardType::kNumeric, .weight = 0},
      {.type = RewardType::kNumeric, .symbolic = {"python3", "same.py"}, .timeout = seconds(5)},
      {.type = RewardType::kRegex, .pattern = "a+"},
      {.type = RewardType::kFormat},
      {.type = RewardType::kFormat, .pattern = "(?s)<a>.*"},
      {.type = RewardType::kLength, .min = 3},
      {.type = RewardType::kLength, .max = 0, .unit = LengthUnit::kCharacters},
      {.type = RewardType::kCommand, .argv = {"python3", "score.py"}, .timeout = seconds(5)},
      {.type = RewardType::kHttp, .url = "http://localhost:8000/score"},
      {.type = RewardType::kHttp, .url = "http://[::1]:80?x=1", .timeout = seconds(5)},
      {.type = RewardType::kHttp, .url = "https://scores.example/b"},
  };
  for (const RewardOptions& options : good)
    EXPECT_NO_THROW(options.validate()) << enum_name(options.type);
}

struct Refused {
  RewardOptions options;
  const char* part;  // of the message
};
void refuse(const std::vector<Refused>& cases) {
  for (const Refused& c : cases) {
    const std::string message = message_of([&] { c.options.validate(); });
    EXPECT_NE(message.find(c.part), std::string::npos) << message;
  }
}

TEST(RewardOptions, RefusesWhatHasNoEffect) {
  refuse({
      {{.pattern = "a"},
       "pattern has no effect on type: numeric (it is for regex, format and judge)"},
      {{.type = RewardType::kExactMatch, .min = 3}, "min has no effect"},
      {{.type = RewardType::kRegex, .pattern = "a", .max = 3}, "max has no effect"},
      {{.type = RewardType::kFormat, .unit = LengthUnit::kTokens}, "unit has no effect"},
      {{.type = RewardType::kLength, .min = 1, .argv = {"x"}}, "argv has no effect"},
      {{.type = RewardType::kCommand, .argv = {"x"}, .url = "http://a"}, "url has no effect"},
      {{.type = RewardType::kNumeric, .timeout = seconds(1)}, "timeout has no effect"},
      {{.type = RewardType::kCommand, .symbolic = {"x"}, .argv = {"x"}},
       "symbolic has no effect on type: command (it is for numeric)"},
  });
}

TEST(RewardOptions, RefusesWhatHasNoMeaning) {
  refuse({
      {{.weight = std::numeric_limits<double>::infinity()}, "weight"},
      {{.type = RewardType::kRegex}, "needs pattern"},
      {{.type = RewardType::kRegex, .pattern = ""}, "pattern is empty"},
      {{.type = RewardType::kRegex, .pattern = "a(b"},
       "'a(b' is wrong at character 4: missing closing parenthesis"},
      {{.type = RewardType::kLength}, "needs min or max"},
      {{.type = RewardType::kLength, .min = -1}, "at least 0"},
      {{.type = RewardType::kLength, .min = 5, .max = 4}, "min is 5, above max 4"},
      {{.type = RewardType::kNumeric, .symbolic = {""}}, "symbolic needs the name of a program"},
      {{.type = RewardType::kCommand}, "needs argv"},
      {{.type = RewardType::kCommand, .argv = {""}}, "needs argv"},
      {{.type = RewardType::kCommand, .argv = {"x"}, .timeout = seconds(0)}, "timeout is 0"},
  });
}

TEST(RewardOptions, RefusesWhatIsNoAddress) {
  refuse({
      {{.type = RewardType::kHttp}, "needs url"},
      {{.type = RewardType::kHttp, .url = "localhost:80"}, "does not begin with http://"},
      {{.type = RewardType::kHttp, .url = "http:///x"}, "names no host"},
      {{.type = RewardType::kHttp, .url = "http://a:b/"}, "port"},
      {{.type = RewardType::kHttp, .url = "http://a:70000/"}, "port"},
      {{.type = RewardType::kHttp, .url = "http://me:secret@a/"}, "names a user"},
      {{.type = RewardType::kHttp, .url = "http://a/x y"}, "white space"},
      {{.type = RewardType::kHttp, .url = "http://a/\r\nEvil: 1"}, "white space"},
      {{.type = RewardType::kHttp, .url = "http://[::1/"}, "does not end"},
  });
}

TEST(RewardSet, NamesAndSums) {
  const RewardSet named({{.type = RewardType::kNumeric},
                         {.type = RewardType::kFormat},
                         {.type = RewardType::kNumeric},
                         {.name = "mine"}});
  EXPECT_EQ(named.names(), (std::vector<std::string>{"numeric", "format", "numeric_2", "mine"}));
  EXPECT_NE(message_of([] { RewardSet(std::vector<RewardOptions>{}); }).find("none is given"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              RewardSet set(std::vector<RewardOptions>{{.weight = 0}});
            }).find("every weight is 0"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              RewardSet set(std::vector<RewardOptions>{{.name = "a"}, {.name = "a"}});
            }).find("two are named 'a'"),
            std::string::npos);

  RewardSet set(
      std::vector<RewardOptions>{{.type = RewardType::kNumeric, .weight = 2},
                                 {.type = RewardType::kRegex, .weight = -0.5, .pattern = "sorry"},
                                 {.type = RewardType::kLength, .weight = 0, .max = 5}});
  EXPECT_TRUE(set.score({}).empty());
  const auto scored = set.score(
      {test::input_of("sorry, 4", "4"), test::input_of("5", "4"), test::input_of("4", "4")});
  ASSERT_EQ(scored.size(), 3u);
  EXPECT_EQ(scored[0].total, 1.5);
  EXPECT_EQ(scored[0].components, (std::vector<std::optional<double>>{1.0, 1.0, 1.0}));
  EXPECT_EQ(scored[1].total, 0.0);
  EXPECT_EQ(scored[2].total, 2.0);
}

}  // namespace
}  // namespace retort::rewards
