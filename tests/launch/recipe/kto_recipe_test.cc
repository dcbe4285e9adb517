// What a kto recipe refuses, with the place and the remedy.
#include <gtest/gtest.h>

#include "launch/yaml/resolved_yaml.h"
#include "recipes/roles/serving_roles.h"
#include "tests/launch/recipe/recipe_fixture.h"

namespace retort::test {
namespace {

const std::string kKto = R"(recipe: kto
output_dir: run
roles:
  student: {model: FOLDER/student}
  reference: {model: FOLDER/teacher}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 128}
train: {max_steps: 10}
kto: {beta: 0.1}
)";

class KtoRecipe : public RecipeTest {
 protected:
  void refused(const std::vector<std::string>& overrides, const std::string& part) {
    const std::string message = error_of(kKto, overrides);
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
  }
};

TEST_F(KtoRecipe, WorksAsItStands) {
  const recipes::Recipe recipe = load(kKto);
  EXPECT_EQ(recipe.kto->loss_type, losses::KtoLoss::kKto);
  EXPECT_EQ(recipe.kto->desirable_weight, 1.0);
  EXPECT_EQ(recipes::serving_roles(recipe), (std::vector<std::string>{"reference"}));
  EXPECT_NO_THROW(load(kKto, {"kto.loss_type=apo_zero_unpaired", "kto.undesirable_weight=1.5"}));
}

TEST_F(KtoRecipe, BlockAndRecipeBelongTogether) {
  refused({"recipe=sft"}, "kto: this block belongs to recipe: kto, the recipe is sft");
  refused({"recipe=dpo", "dpo={}"}, "kto: this block belongs to recipe: kto, the recipe is dpo");
}

// Every key has a default, so that the block may be left out; it is in the resolved recipe.
TEST_F(KtoRecipe, TheBlockMayBeLeftOut) {
  const std::string without = replaced(kKto, "kto: {beta: 0.1}\n", "");
  const recipes::Recipe recipe = load(without);
  EXPECT_EQ(recipe.kto->beta, 0.1);
  EXPECT_EQ(recipes::serving_roles(recipe), (std::vector<std::string>{"reference"}));
  EXPECT_EQ(launch::resolved_yaml(recipe), launch::resolved_yaml(load(kKto)));
  EXPECT_EQ(load(without, {"recipe=dpo"}).dpo->beta, 0.1);
}

TEST_F(KtoRecipe, TheReferenceIsAnotherRole) {
  refused({"kto.reference=refrence"},
          "kto.reference: 'refrence' is not declared under roles; did you mean 'reference'?");
  const std::string other = "  other: {model: FOLDER/teacher}\ndata:";
  const std::string message = error_of(replaced(kKto, "data:", other));
  EXPECT_NE(message.find("no part of this recipe uses the role"), std::string::npos) << message;
}

TEST_F(KtoRecipe, KeysWithoutEffect) {
  refused({"data.packing=false"},
          "data.packing: has no effect: completions are always laid end to end");
  refused({"data.completion_only_loss=false"},
          "has no effect: this recipe trains on the completion of a row");
  refused({"data.assistant_only_loss=false"},
          "has no effect: this recipe trains on the completion of a row");
}

TEST_F(KtoRecipe, Ranges) {
  refused({"kto.beta=0"}, "beta must be positive and finite");
  refused({"kto.desirable_weight=0"}, "desirable_weight must be positive and finite");
  refused({"kto.undesirable_weight=-1"}, "undesirable_weight must be positive and finite");
  refused({"kto.prefetch=0"}, "prefetch must be at least 1");
  refused({"kto.loss_type=apo_zero"}, "'apo_zero' is not one of kto | apo_zero_unpaired");
}

// Rows of prompt, completion and label are read whatever the format, if it is one that has them.
TEST_F(KtoRecipe, RowsNeedNoFormatOfTheirOwn) {
  EXPECT_NO_THROW(load(kKto, {"data.train.0.format=prompt_completion"}));
  const std::string message = error_of(kKto, {"data.train.0.format=kto"});
  EXPECT_EQ(message.find("not in this version"), std::string::npos) << message;
  EXPECT_NE(message.find("data.train[0].format: 'kto' is not one of auto | messages"),
            std::string::npos)
      << message;
}

TEST_F(KtoRecipe, EveryColumnMayHaveAnotherName) {
  const std::string columns = "columns={prompt: question, completion: answer, label: liked}";
  const recipes::Recipe recipe = load(kKto, {"data.train.0." + columns});
  EXPECT_EQ(recipe.data.train[0].columns.at("label"), "liked");
  refused({"data.train.0.columns={lbel: liked}"}, "did you mean 'label'?");
}

// A mismatched completion is another row's of the same optimizer step.
TEST_F(KtoRecipe, AStepHasTwoRows) {
  const std::string one = "train.per_device_train_batch_size=1";
  refused({one}, "gives the optimizer step one row, it must have at least 2");
  EXPECT_NO_THROW(load(kKto, {one, "train.gradient_accumulation_steps=2"}));
  EXPECT_NO_THROW(load(kKto, {one, "roles.student.world.dp=2"}));
  EXPECT_NO_THROW(load(kKto, {one, "kto.loss_type=apo_zero_unpaired"}));
  refused({one, "train.gradient_accumulation_steps=4", "train.batch_size_rampup_steps=10"},
          "gives the first optimizer step one row");

  refused({"train.tokens_per_batch=200"}, "must be at least twice data.max_length (2 * 128)");
  EXPECT_NO_THROW(load(kKto, {"train.tokens_per_batch=256"}));
  EXPECT_NO_THROW(
      load(kKto, {"train.tokens_per_batch=200", "train.gradient_accumulation_steps=2"}));
  refused({"train.tokens_per_batch=256", "train.gradient_accumulation_steps=4",
           "train.batch_size_rampup_steps=10"},
          "batches of rows by tokens are formed before their step is known");
}

}  // namespace
}  // namespace retort::test
