// What the recipes that generate refuse, with the place and the remedy; and what they leave alone.
#include <gtest/gtest.h>

#include "recipes/roles/serving_roles.h"
#include "tests/launch/recipe/recipe_fixture.h"

namespace retort::test {
namespace {

const std::string kGrpo = R"(recipe: grpo
output_dir: run
roles:
  student: {model: FOLDER/student}
  generator: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 128}
generation: {num_generations: 4, max_new_tokens: 32}
rewards: [{type: numeric}]
grpo: {max_staleness: 0}
train: {max_steps: 10, per_device_train_batch_size: 8}
)";
const std::string kOnPolicy = R"(recipe: on_policy_distill
output_dir: run
roles:
  student: {model: FOLDER/student}
  teacher: {model: FOLDER/teacher}
  generator: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}], max_length: 128}
generation: {max_new_tokens: 32}
distill: {teachers: [{role: teacher}], loss_type: reverse_kl}
train: {max_steps: 10}
)";

class OnPolicyRecipe : public RecipeTest {
 protected:
  void refused(const std::string& text, const std::vector<std::string>& overrides,
               const std::string& part) {
    const std::string message = error_of(text, overrides);
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
  }
};

TEST_F(OnPolicyRecipe, WorkAsTheyStand) {
  EXPECT_EQ(recipes::serving_roles(load(kGrpo)), (std::vector<std::string>{"generator"}));
  const recipes::Recipe on_policy = load(kOnPolicy);
  EXPECT_EQ(on_policy.distill->lmbda, 1.0);
  EXPECT_EQ(recipes::serving_roles(on_policy), (std::vector<std::string>{"teacher", "generator"}));
  EXPECT_TRUE(on_policy.is_generator("generator"));
}

TEST_F(OnPolicyRecipe, TheSampledTokenFormNeedsTheWholeDistribution) {
  const std::vector<std::string> sampled{"distill.payload=target_logps",
                                         "distill.use_policy_gradient=true"};
  EXPECT_NO_THROW(load(kOnPolicy, sampled));
  auto with = [&](const std::string& more) {
    std::vector<std::string> all = sampled;
    all.push_back(more);
    return all;
  };
  refused(kOnPolicy, with("generation.top_p=0.5"),
          "is unbiased only for tokens drawn from the student's whole distribution");
  refused(kOnPolicy, with("generation.temperature=0.7"), "is unbiased only for tokens");
  refused(kOnPolicy, with("distill.loss_type=forward_kl"), "write loss_type: reverse_kl");
  refused(kOnPolicy, {"distill.payload=target_logps"},
          "teacher");  // k1 without a policy gradient: its gradient lacks the teacher
  refused(kOnPolicy, {"distill.use_policy_gradient=true"}, "needs payload: target_logps");
}

TEST_F(OnPolicyRecipe, RefusesWhatWouldTeachNothing) {
  refused(kOnPolicy, {"distill.kd_ratio=0.5"},
          "distill.kd_ratio: must be 1 where all batches are on-policy");
  refused(kOnPolicy, {"distill.lmbda=0.5"}, "on_policy_distill is distill with lmbda: 1.0");
  refused(kOnPolicy, {"generation.num_generations=4"}, "draws one completion for each prompt");
  refused(kOnPolicy, {"generation.max_new_tokens=128"}, "leaves no room for a prompt");
  refused(kGrpo, {"generation.temperature=0"}, "temperature");
  refused(kGrpo, {"generation.num_generations=1"}, "must be at least 2");
  refused(kGrpo, {"train.per_device_train_batch_size=6"},
          "must be a multiple of generation.num_generations");
  refused(kGrpo, {"grpo.max_staleness=1", "generation.top_k=5"},
          "compares with the probabilities that the samples were drawn with");
  EXPECT_NO_THROW(load(kGrpo, {"grpo.max_staleness=1", "generation.top_k=5",
                               "grpo.sampling_correction=token_truncate"}));
  refused(kGrpo, {"grpo.beta=0.1"}, "grpo.reference: 'reference' is not declared under roles");
}

TEST_F(OnPolicyRecipe, TheEnginesRulesHoldBeforeAnythingStarts) {
  refused(kGrpo, {"generation.max_tokens_per_step=32", "generation.max_sequences=64"},
          "max_tokens_per_step");
  refused(kGrpo, {"generation.temperature=0.0001"}, "temperature");
  refused(kGrpo, {"generation.top_p=0"}, "top_p");
}

}  // namespace
}  // namespace retort::test
