// A run saves its recipe with every key, and each of its processes reads that: what this program
// accepts it must accept again once all keys are written out.
#include <gtest/gtest.h>

#include "tests/launch/key_bases.h"
#include "tests/launch/key_rows.h"
#include "tests/launch/recipe_fixture.h"

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

}  // namespace
}  // namespace retort::test
