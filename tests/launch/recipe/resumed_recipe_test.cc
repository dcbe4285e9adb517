// What of a recipe may change while its run goes on.
#include "launch/run/resumed_recipe.h"

#include <gtest/gtest.h>

#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_rows.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

class ResumedRecipe : public RecipeTest {
 protected:
  ResumedRecipe() { write_key_files(folder_); }

  std::vector<std::string> applied(const std::string& base, const std::vector<std::string>& change,
                                   const std::vector<std::string>& first = {}) {
    std::vector<std::string> texts;
    for (const launch::ChangedKey& key :
         launch::applied_keys(load(base, first), load(base, change)))
      texts.push_back(key.text());
    return texts;
  }
};

TEST_F(ResumedRecipe, TellsWhatItApplies) {
  EXPECT_TRUE(applied(kSftBase, {}).empty());
  EXPECT_EQ(
      applied(kSftBase, {"train.save_steps=17", "launch.stop_timeout=9s"},
              {"train.save_steps=18", "launch.stop_timeout=8s"}),
      (std::vector<std::string>{"train.save_steps: 18 -> 17", "launch.stop_timeout: 8s -> 9s"}));
  EXPECT_EQ(
      applied(kSftBase, {"train.checkpoint_command=[a, b]"}, {"train.checkpoint_command=[a]"}),
      (std::vector<std::string>{"train.checkpoint_command[1]: none -> b"}));
}

// A value may be a key: what is told is that there is one.
TEST_F(ResumedRecipe, TellsTheNamesOfVariablesAlone) {
  EXPECT_EQ(applied(kSftBase, {"roles.student.env={HF_TOKEN: hf_4711}"}),
            (std::vector<std::string>{"roles.student.env.HF_TOKEN: none -> a value",
                                      "roles.student.env: {} -> none"}));
}

TEST_F(ResumedRecipe, TellsThatAVariableHasAnotherValue) {
  const launch::RoleValues before{{"student", {{"GONE", "a"}, {"HF_TOKEN", "hf_1"}, {"SAME", ""}}}};
  const launch::RoleValues now{{"student", {{"HF_TOKEN", "hf_2"}, {"NEW", "a"}, {"SAME", ""}}},
                               {"teacher", {{"HF_TOKEN", "hf_2"}}}};
  EXPECT_EQ(launch::changed_values(before, now),
            std::vector<std::string>{"roles.student.env.HF_TOKEN"});
  EXPECT_TRUE(launch::changed_values(now, now).empty());
}

TEST_F(ResumedRecipe, RefusesWhatTheCheckpointDecides) {
  for (const char* change : {"seed=5", "data.shuffle=false", "data.train.0.weight=3"}) {
    SCOPED_TRACE(change);
    const std::string key = std::string(change).substr(0, std::string(change).find('='));
    const std::string said = message_of([&] { applied(kSftBase, {change}); });
    EXPECT_TRUE(said.starts_with("--resume: the run cannot go on with what changed: ")) << said;
    const std::string name = key == "data.train.0.weight" ? "data.train[0].weight" : key;
    EXPECT_NE(said.find(name + ": "), std::string::npos) << said;
  }
}

// The batches of like lengths of pairs, but not the packs of samples, follow from the budget.
TEST_F(ResumedRecipe, KeepsTheBudgetOfBatchesThatWereFormedByIt) {
  const std::vector<std::string> small{"train.per_device_train_batch_size=null",
                                       "train.tokens_per_batch=4096"};
  std::vector<std::string> large = small;
  large.back() = "train.tokens_per_batch=8192";
  EXPECT_EQ(applied(kSftBase, large, small),
            std::vector<std::string>{"train.tokens_per_batch: 4096 -> 8192"});
  expect_refused("train.tokens_per_batch: 4096 -> 8192", [&] { applied(kDpoBase, large, small); });

  std::vector<std::string> more = small;
  more.emplace_back("train.gradient_accumulation_steps=4");
  expect_refused("train.gradient_accumulation_steps: ", [&] { applied(kDpoBase, more, small); });
}

// More rounds may follow, but none of another length.
TEST_F(ResumedRecipe, KeepsTheStepsOfARound) {
  EXPECT_EQ(applied(kRejectionBase, {"train.max_steps=15", "rejection_sampling.rounds=3"}).size(),
            2U);
  expect_refused("train.max_steps: 10 -> 20",
                 [&] { applied(kRejectionBase, {"train.max_steps=20"}); });
}

}  // namespace
}  // namespace retort::test
