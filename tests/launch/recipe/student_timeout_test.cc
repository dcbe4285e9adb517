// How long a collective of the student may take: the sums of the table in
// recipes/run/rank/student_options.h.
#include <gtest/gtest.h>

#include "recipes/run/rank/student_options.h"
#include "tests/launch/recipe/recipe_fixture.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;

const std::string kGrpo = R"(recipe: grpo
output_dir: run
roles:
  student: {model: FOLDER/student}
  generator: {model: FOLDER/student}
data: {train: [{path: FOLDER/train.jsonl}]}
train: {max_steps: 10, per_device_train_batch_size: 8}
generation: {num_generations: 8, max_new_tokens: 4}
rewards: [{type: numeric}]
grpo: {loss_type: dapo}
)";

const std::string kReference = "roles.reference={model: FOLDER/student}";
const std::string kTwoRanks = "roles.student.world.dp=2";

class StudentTimeout : public RecipeTest {
 protected:
  // Of a recipe with rpc.timeout 100s, launch.load_timeout 30s and generation.timeout 1000s where
  // it has them.
  Duration of(const std::string& text, std::vector<std::string> overrides = {}) {
    for (std::string& one : overrides)
      one = with_folder(one);
    if (text != kSft) overrides.push_back("rpc.timeout=100s");
    if (text != kSft) overrides.push_back("launch.load_timeout=30s");
    if (text == kGrpo) overrides.push_back("generation.timeout=1000s");
    return recipes::student_timeout(load(text, overrides));
  }
};

TEST_F(StudentTimeout, WithoutOtherRolesIsWhatIsAsked) {
  EXPECT_EQ(of(kSft), 120s);
  EXPECT_EQ(of(kSft, {kTwoRanks, "launch.collective_timeout=7s"}), 7s);
}

TEST_F(StudentTimeout, EachRoleIsWaitedForAfterTheOneBefore) {
  EXPECT_EQ(of(kDistill), (30s + 100s) + 10s);
  EXPECT_EQ(of(kDistill, {"roles.other={model: FOLDER/teacher}",
                          "distill.teachers=[{role: teacher, weight: 0.5}, {role: other, weight: "
                          "0.5}]"}),
            2 * (30s + 100s) + 10s);
}

TEST_F(StudentTimeout, SamplesAreAcceptedThenDrawnThenScored) {
  EXPECT_EQ(of(kGrpo), 2 * (100s + 1000s) + 30s + 10s) << "lost with a generator, drawn again";
  EXPECT_EQ(of(kGrpo, {"rewards=[{type: numeric}, {type: command, argv: [judge], timeout: 300s}, "
                       "{type: http, url: 'http://localhost:1/score'}]"}),
            2 * (100s + 1000s) + 2 * (300s + 60s) + 30s + 10s)
      << "two batches for each reward that asks somebody, 60s unless it says otherwise";
}

TEST_F(StudentTimeout, ARoleThatScoresHasTheTimeOfItsEngine) {
  EXPECT_EQ(of(kGrpo, {"roles.judge={restarts: 0, external: {engine: kserve, timeout: 400s, "
                       "load_timeout: 30s, url: ['http://localhost:1'], tokenizer: "
                       "FOLDER/student}}",
                       "roles.generator.restarts=0", "rewards=[{type: model, role: judge}]"}),
            100s + 1000s + 2 * 400s + 10s);
}

TEST_F(StudentTimeout, WithoutRestartsNobodyIsWaitedFor) {
  EXPECT_EQ(of(kGrpo, {"roles.generator.restarts=0"}), 100s + 1000s + 10s);
}

TEST_F(StudentTimeout, SamplesThatAPushEndsAreDrawnAgain) {
  EXPECT_EQ(of(kGrpo, {"grpo.max_staleness=1", "weight_sync.in_flight=abort",
                       "roles.generator.restarts=0"}),
            2 * (100s + 1000s) + 10s);
}

TEST_F(StudentTimeout, AnEvaluationWaitsForRolloutsThatAreFinished) {
  EXPECT_EQ(of(kGrpo, {"data.eval=[{path: FOLDER/train.jsonl}]", "train.eval_steps=2",
                       "roles.generator.restarts=0"}),
            100s + 2 * 1000s + 10s);
}

TEST_F(StudentTimeout, AReferenceIsAskedAfterTheDraw) {
  EXPECT_EQ(of(kGrpo, {kReference, "grpo.beta=0.1"}), 2 * (100s + 1000s) + 100s + 30s + 10s);
}

TEST_F(StudentTimeout, AskedForMoreIsThat) {
  EXPECT_EQ(of(kGrpo, {kTwoRanks, "launch.collective_timeout=1h"}), 1h);
}

TEST_F(StudentTimeout, AskedForLessIsRefusedWithTheSum) {
  const std::string message = error_of(kGrpo, {kTwoRanks, "launch.collective_timeout=600s",
                                               "rewards.0.type=command", "rewards.0.argv=[judge]"});
  EXPECT_NE(message.find("launch.collective_timeout: has no effect below 2170s"), std::string::npos)
      << message;
  EXPECT_NE(message.find("rewards[].timeout"), std::string::npos) << message;
}

}  // namespace
}  // namespace retort::test
