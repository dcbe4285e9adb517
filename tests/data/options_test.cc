#include "recipes/data/options.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/thrown.h"

namespace retort::data {
namespace {

std::string refusal(DataOptions options) {
  return test::message_of([&] { options.validate(); });
}

TEST(DataOptions, DefaultsAreValid) {
  DataOptions options;
  options.train = {
      {.path = "a.jsonl", .columns = {{"prompt", "question"}, {"completion", "answer"}}}};
  EXPECT_NO_THROW(options.validate());
}

TEST(DataOptions, NamesTheField) {
  EXPECT_NE(refusal({.train = {{.path = "a"}, {.path = ""}}}).find("data.train[1].path"),
            std::string::npos);
  EXPECT_NE(refusal({.eval = {{.path = "a", .weight = 0}}}).find("data.eval[0].weight"),
            std::string::npos);
  EXPECT_NE(refusal({.eval = {{.path = "a", .weight = -1}}}).find("data.eval[0].weight"),
            std::string::npos);
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_NE(refusal({.train = {{.path = "a", .weight = infinite}}}).find("data.train[0].weight"),
            std::string::npos);
  EXPECT_NE(refusal({.max_length = 1}).find("data.max_length"), std::string::npos);
  EXPECT_NE(refusal({.train = {{.path = "a", .columns = {{"text", ""}}}}}).find("columns.text"),
            std::string::npos);
}

TEST(DataOptions, DaysAndTemplateVariables) {
  for (const char* day : {"2024-02-29", "1999-12-31"})
    EXPECT_NO_THROW(DataOptions{.template_date = day}.validate());
  for (const char* day :
       {"", "today", "2023-02-29", "2024-2-9", "24-02-29", "2024-02-29 ", "2024-13-01"})
    EXPECT_NE(refusal({.template_date = day}).find("data.template_date"), std::string::npos) << day;

  EXPECT_NO_THROW(DataOptions{.chat_template_kwargs = {R"({"enable_thinking":false})"}}.validate());
  for (const std::string taken : {"messages", "tools", "add_generation_prompt"})
    EXPECT_NE(refusal({.chat_template_kwargs = {"{\"" + taken + "\":1}"}}).find(taken),
              std::string::npos);
}

TEST(DataOptions, WrappingNeedsPacks) {
  EXPECT_NO_THROW(DataOptions{.packing_strategy = PackingStrategy::kWrapped}.validate());
  EXPECT_NE(refusal({.packing = false, .packing_strategy = PackingStrategy::kWrapped})
                .find("data.packing_strategy"),
            std::string::npos);
}

TEST(DataOptions, NullsAreTakenOutOfStructsAlone) {
  for (const Format format : {Format::kAuto, Format::kMessages, Format::kPromptCompletion})
    EXPECT_NO_THROW(
        (DataOptions{.train = {{.path = "a", .format = format, .remove_none_values = true}}}
             .validate()));
  EXPECT_NE(refusal({.eval = {{.path = "a", .format = Format::kText, .remove_none_values = true}}})
                .find("data.eval[0].remove_none_values has no effect with format: text"),
            std::string::npos);
}

TEST(DataOptions, UnknownColumnKeySuggestsTheNearest) {
  const std::string text = refusal({.train = {{.path = "a", .columns = {{"completoin", "x"}}}}});
  EXPECT_NE(text.find("data.train[0].columns.completoin"), std::string::npos) << text;
  EXPECT_NE(text.find("did you mean 'completion'?"), std::string::npos) << text;
}

}  // namespace
}  // namespace retort::data
