// A run saves its recipe with every key, and each of its processes reads that: what this program
// accepts it must accept again once all keys are written out.
#include <gtest/gtest.h>

#include "launch/yaml/resolved_yaml.h"
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/keys/key_rows.h"
#include "tests/launch/recipe/recipe_fixture.h"

namespace retort::test {
namespace {

class SavedRecipe : public RecipeTest {
 protected:
  SavedRecipe() { write_key_files(folder_); }

  void expect_loads_again(const char* base, std::vector<std::string> overrides) {
    for (std::string& one : overrides)
      one = with_folder(one);
    // Keys of devices are part of it.
    expect_loads_as_saved(load(base, overrides, {.cuda = true}), {.cuda = true});
  }
};

TEST_F(SavedRecipe, OfEachTypeLoads) {
  for (const char* base :
       {kSftBase, kDistillBase, kOnPolicyBase, kDpoBase, kKtoBase, kGrpoBase, kRejectionBase}) {
    SCOPED_TRACE(base);
    expect_loads_again(base, {});
  }
}

// With each key changed that the table of keys changes.
TEST_F(SavedRecipe, WithEachKeyChangedLoads) {
  int count = 0;
  for (const KeyRow& row : key_rows()) {
    if (row.observe == nullptr) continue;
    SCOPED_TRACE(row.change);
    std::vector<std::string> overrides = row.with;
    overrides.push_back(row.change);
    expect_loads_again(row.base, overrides);
    ++count;
  }
  EXPECT_GT(count, 80) << "the table of keys has almost no rows that act";
}

// grpo.reference is "reference" unless it is written, whatever role has that name.
TEST_F(SavedRecipe, WithAnotherRoleOfTheReferencesNameLoads) {
  const std::string named = replaced(replaced(kGrpoBase, "  generator: {", "  reference: {"),
                                     "generation: {", "generation: {role: reference, ");
  expect_loads_again(named.c_str(), {});
}

// TRL 1.16's for each method, and ten times that for an adapter; in the recipe that a run saves.
TEST_F(SavedRecipe, HasTheLearningRateOfItsType) {
  const auto rate = [&](const char* base, const std::vector<std::string>& more = {}) {
    const recipes::Recipe recipe = load(base, more);
    EXPECT_EQ(launch::resolved_yaml(recipe).find("learning_rate: null"), std::string::npos);
    expect_loads_as_saved(recipe);
    return recipe.train.learning_rate.value();
  };
  const std::vector<std::string> lora{"roles.student.lora={r: 4}"};
  EXPECT_EQ(rate(kSftBase), 2e-5);
  EXPECT_EQ(rate(kSftBase, lora), 2e-4);
  EXPECT_EQ(rate(kRejectionBase), 2e-5);
  EXPECT_EQ(rate(kRewardModelBase), 1e-4);
  for (const char* base : {kDistillBase, kOnPolicyBase, kDpoBase, kKtoBase, kGrpoBase}) {
    EXPECT_EQ(rate(base), 1e-6) << base;
    EXPECT_EQ(rate(base, lora), 1e-5) << base;
  }

  EXPECT_EQ(rate(kDpoBase, {"train.learning_rate=1.0e-4"}), 1e-4);
  const std::string above = error_of(kDpoBase, {"train.min_lr=1.0e-5"});
  EXPECT_NE(above.find("must not be above learning_rate, which is 1e-06"), std::string::npos)
      << above;
}

}  // namespace
}  // namespace retort::test
