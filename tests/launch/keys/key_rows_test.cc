// Nothing that lies: every key of the recipe language changes what the program does, or is refused.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <map>

#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_rows.h"
#include "tests/launch/keys/test_source.h"
#include "tests/launch/recipe/recipe_fixture.h"

namespace retort::test {
namespace {

TEST(RecipeKeys, EachHasARow) {
  std::set<std::string> rowless = recipe_keys();
  EXPECT_GT(rowless.size(), 140u) << "the walk over the option structs saw almost nothing";
  for (const KeyRow& row : key_rows())
    rowless.erase(row.key);
  for (const std::string& key : rowless)
    ADD_FAILURE() << key << " has no row: say in tests/launch/key_rows_*.cc where it shows";
}

TEST(RecipeKeys, EachRowIsOfAKey) {
  const std::set<std::string> keys = recipe_keys();
  for (const KeyRow& row : key_rows())
    EXPECT_TRUE(keys.contains(row.key)) << "there is no key " << row.key << ": " << row;
}

// A refusal says that a key does nothing in one recipe, so it must do something in another.
TEST(RecipeKeys, EachActsSomewhereOrHasOneValue) {
  const std::set<std::string> only_refused{
      "recipe",        // another value is another recipe, with other blocks
      "roles.<name>",  // a role that is named must be used
      "distill",       // these blocks make the recipe what it is
      "dpo",
      "kto",
      "generation",
      "rejection_sampling",
      "grpo",
      "reward_model",
      "weight_sync",
      "generation.role",
      "environment.role",
      "rpc.transports",     // has one choice; the others are refused with the reason
      "data.eval[].weight"  // sources have it for training
  };

  std::map<std::string, bool> acting;
  for (const KeyRow& row : key_rows())
    acting[row.key] |= row.refusal.empty();
  for (const auto& [key, acts] : acting)
    EXPECT_NE(acts, only_refused.contains(key)) << key;
}

// The row's number, and its key for whoever reads the report.
std::string name_of(const testing::TestParamInfo<KeyRow>& info) {
  std::string name = std::to_string(info.index) + "_" + info.param.key;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class RecipeKey : public RecipeTest, public testing::WithParamInterface<KeyRow> {
 protected:
  RecipeKey() { write_key_files(folder_); }

  std::vector<std::string> overrides(bool changed) const {
    std::vector<std::string> all;
    for (const std::string& one : GetParam().with)
      all.push_back(with_folder(one));
    if (changed) all.push_back(with_folder(GetParam().change));
    return all;
  }

  std::string observe(bool changed) {
    const recipes::Recipe recipe = load(GetParam().base, overrides(changed), {.cuda = true});
    return GetParam().observe({recipe, folder_});
  }

  void expect_effect() {
    const std::string before = observe(false);
    EXPECT_EQ(observe(false), before) << "differs whatever the key says";
    EXPECT_NE(observe(true), before) << "the key has no effect";
  }

  void expect_refusal() {
    EXPECT_NO_THROW(load(GetParam().base, overrides(false)));
    try {
      load(GetParam().base, overrides(true));
      ADD_FAILURE() << "is accepted";
    } catch (const Error& error) {
      const std::string message = error.message();
      const std::string file = (folder_ / "r.yaml").string() + ":";
      EXPECT_TRUE(message.starts_with(file) || message.starts_with("command line: ")) << message;
      EXPECT_NE(message.find(GetParam().refusal), std::string::npos) << message;
    }
  }

  void expect_test() {
    const char* source = std::getenv("RETORT_SOURCE_DIR");
    ASSERT_TRUE(source) << "run it by ctest";
    EXPECT_EQ(why_not_tested(source, GetParam().test, GetParam().text), "");
  }
};

TEST_P(RecipeKey, ActsOrIsRefused) {
  if (!GetParam().test.empty())
    expect_test();
  else if (!GetParam().refusal.empty())
    expect_refusal();
  else
    expect_effect();
}

INSTANTIATE_TEST_SUITE_P(Rows, RecipeKey, testing::ValuesIn(key_rows()), name_of);

}  // namespace
}  // namespace retort::test
