#include "base/options.h"

#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace retort {

enum class Fruit { kApple, kPear, kPlum };
template <>
struct EnumNames<Fruit> {
  static constexpr std::array<std::pair<std::string_view, Fruit>, 3> values{
      {{"apple", Fruit::kApple}, {"pear", Fruit::kPear}, {"plum", Fruit::kPlum}}};
};

namespace {

constexpr std::string_view kNames[] = {"learning_rate", "max_steps", "num_train_epochs",
                                       "lr_scheduler_type"};

TEST(NearestName, FindsSlips) {
  EXPECT_EQ(nearest_name("learning_rat", kNames), "learning_rate");
  EXPECT_EQ(nearest_name("laerning_rate", kNames), "learning_rate");
  EXPECT_EQ(nearest_name("maxsteps", kNames), "max_steps");
  EXPECT_EQ(nearest_name("num_epochs", kNames), "")
      << "six letters away from num_train_epochs: more than a third";
  EXPECT_EQ(nearest_name("lr_schedule_type", kNames), "lr_scheduler_type");
  EXPECT_EQ(nearest_name("max_steps", kNames), "max_steps");
  EXPECT_EQ(nearest_name("MAX_STEPS", kNames), "max_steps");
}

TEST(NearestName, SaysNothingWhenNothingIsClose) {
  EXPECT_EQ(nearest_name("colour", kNames), "");
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(nearest_name("", kNames), "");
}

TEST(NearestName, PrefersTheClosest) {
  constexpr std::string_view names[] = {"abcdefgh", "abcdefxy"};
  EXPECT_EQ(nearest_name("abcdefx", names), "abcdefxy");
  EXPECT_EQ(nearest_name("abcdefg", names), "abcdefgh");
}

TEST(Enums, GoBothWays) {
  for (const auto fruit : {Fruit::kApple, Fruit::kPear, Fruit::kPlum})
    EXPECT_EQ(parse_enum<Fruit>(enum_name(fruit)), fruit);
  EXPECT_EQ(enum_choices<Fruit>(), "apple | pear | plum");
}

TEST(Enums, RefusalNamesTheChoicesAndTheNearest) {
  EXPECT_EQ(test::message_of([] { parse_enum<Fruit>("paer"); }),
            "'paer' is not one of apple | pear | plum; did you mean 'pear'?");
  EXPECT_EQ(test::message_of([] { parse_enum<Fruit>("Kumquat"); }),
            "'Kumquat' is not one of apple | pear | plum");
}

}  // namespace
}  // namespace retort
