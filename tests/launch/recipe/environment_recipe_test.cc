// What follows from a recipe whose samples are episodes.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "environments/options.h"
#include "launch/document/recipe_file.h"
#include "launch/plan/role_plan.h"
#include "recipes/roles/external_roles.h"
#include "recipes/roles/input_paths.h"
#include "recipes/roles/serving_roles.h"
#include "tests/launch/keys/key_bases.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kService = "roles.tools.environment={url: 'http://127.0.0.1:9'}";

class EnvironmentRecipe : public RecipeTest {
 protected:
  EnvironmentRecipe() { write_key_files(folder_); }
};

TEST_F(EnvironmentRecipe, TheEnvironmentServesBesideTheGenerator) {
  const recipes::Recipe recipe = load(kToolsBase);
  EXPECT_EQ(recipes::serving_roles(recipe), (std::vector<std::string>{"generator", "tools"}));
  EXPECT_TRUE(recipe.is_environment("tools"));
  EXPECT_FALSE(recipe.is_environment("generator"));
  EXPECT_EQ(recipe.longest_completion(), 8);
  EXPECT_FALSE(recipes::is_repeatable(recipe));

  const recipes::Recipe without = load(kGrpoBase);
  EXPECT_EQ(without.longest_completion(), 4);
  EXPECT_TRUE(recipes::is_repeatable(without));
}

// A sample may wait for its environment three times, and is an error only after that.
TEST_F(EnvironmentRecipe, SamplesHaveTheTimeOfTheirEpisodes) {
  EXPECT_EQ(load(kGrpoBase).generation->timeout, 10min);
  EXPECT_EQ(load(kToolsBase).generation->timeout, 40min);
  EXPECT_EQ(load(kToolsBase, {"environment.episode_timeout=2m"}).generation->timeout, 16min);
  EXPECT_EQ(load(kToolsBase, {"generation.timeout=30m"}).generation->timeout, 30min);
}

// Of a round's episodes those that find no room wait for others to end.
TEST_F(EnvironmentRecipe, SamplesHaveTheTimeOfTheEpisodesBeforeThem) {
  const auto timeout = [&](std::vector<std::string> overrides) {
    overrides.push_back("train.per_device_train_batch_size=12");
    return load(kToolsBase, overrides).generation->timeout;
  };
  const std::string five = "roles.tools.environment.episodes=5";
  EXPECT_EQ(timeout({}), 40min) << "12 of 32";
  EXPECT_EQ(timeout({five}), 100min) << "12 of 5 at a time";
  EXPECT_EQ(timeout({five, "roles.tools.world.dp=2"}), 70min);
  EXPECT_EQ(timeout({five, "train.gradient_accumulation_steps=2"}), 160min);
  EXPECT_EQ(timeout({five, "roles.student.world.dp=2"}), 160min);
  EXPECT_EQ(timeout({five, "grpo.num_mini_batches=2"}), 160min);
}

TEST_F(EnvironmentRecipe, EpisodesThatAreSelectedHaveTheTimeOfTheirRound) {
  const auto timeout = [&](std::vector<std::string> overrides) {
    overrides.push_back("roles.tools.environment.episodes=5");
    return load(kRejectionToolsBase, overrides).generation->timeout;
  };
  EXPECT_EQ(timeout({}), 70min) << "8 of 5 at a time, whatever a step has";
  EXPECT_EQ(timeout({"train.per_device_train_batch_size=12"}), 70min);
  EXPECT_EQ(timeout({"rejection_sampling.prompts_per_round=10"}), 130min);
  EXPECT_EQ(timeout({"rejection_sampling.prompts_per_round=0", "generation.timeout=2h"}), 120min);
}

TEST_F(EnvironmentRecipe, EpisodesThatAreTaughtHaveTheTimeOfTheirStep) {
  const auto timeout = [&](std::vector<std::string> overrides) {
    overrides.push_back("roles.tools.environment.episodes=5");
    return load(kTaughtToolsBase, overrides).generation->timeout;
  };
  EXPECT_EQ(timeout({}), 40min);
  EXPECT_EQ(timeout({"train.per_device_train_batch_size=12"}), 100min);
  EXPECT_EQ(timeout({"train.gradient_accumulation_steps=8"}), 130min);
}

// A generator serves once its episodes can begin.
TEST_F(EnvironmentRecipe, TheGeneratorMayTakeAsLongAsTheEnvironment) {
  const recipes::Recipe recipe = load(kToolsBase, {"roles.tools.environment.start_timeout=1h"});
  EXPECT_EQ(recipes::load_timeout_of(recipe, "tools"), 1h);
  EXPECT_EQ(recipes::load_timeout_of(recipe, "generator"), 1h);
  EXPECT_EQ(recipes::load_timeout_of(load(kToolsBase), "generator"), 10min);
}

TEST_F(EnvironmentRecipe, AnEnvironmentIsPlannedWithoutAModel) {
  const auto planned = [&](const std::vector<std::string>& overrides) {
    const auto plans = launch::plan_roles(load(kToolsBase, overrides));
    return *std::ranges::find(plans, std::string("tools"), &launch::RolePlan::name);
  };
  EXPECT_EQ(planned({}).model, "python3");
  EXPECT_EQ(planned({"roles.tools.world.dp=3"}).ranks, 3);
  EXPECT_EQ(planned({}).peak(), 0);
  EXPECT_EQ(planned({kService}).model, "http://127.0.0.1:9");
}

TEST_F(EnvironmentRecipe, TheKeyOfAServiceIsAnInput) {
  const recipes::Recipe recipe =
      load(kToolsBase, {kService, "roles.tools.environment.api_key_file=~/key"});
  EXPECT_EQ(recipe.roles.at("tools").environment->api_key_file,
            std::string(std::getenv("HOME")) + "/key");
  const auto paths = recipes::input_paths(recipe);
  const auto key = std::ranges::find(paths, std::string("roles.tools.environment.api_key_file"),
                                     &recipes::InputPath::key);
  ASSERT_NE(key, paths.end());
  EXPECT_EQ(key->role, "tools");
}

TEST_F(EnvironmentRecipe, TheKeyOfAServiceMayBeAVariable) {
  const recipes::Recipe recipe =
      load(kToolsBase, {kService, "roles.tools.environment.api_key_env=RETORT_TOOLS_KEY"});
  ::setenv("RETORT_TOOLS_KEY", "opened", /*overwrite=*/1);
  EXPECT_EQ(environments::read_api_key(*recipe.roles.at("tools").environment), "opened");
}

TEST_F(EnvironmentRecipe, MissingRewardsAreTheEnvironments) {
  const std::string with = error_of(kToolsBase, {"rewards=null"});
  EXPECT_NE(with.find("recipe: grpo needs at least rewards: [{type: environment}]"),
            std::string::npos)
      << with;
  const std::string without = error_of(kGrpoBase, {"rewards=null"});
  EXPECT_NE(without.find("needs at least rewards: [{type: numeric}]"), std::string::npos)
      << without;
}

TEST_F(EnvironmentRecipe, OneTurnIsWarnedAbout) {
  const auto is_warned_about = [&](const std::string& turns) {
    load(kToolsBase, {"environment.max_turns=" + turns});
    return std::ranges::any_of(warnings_, [](const std::string& warning) {
      return warning.find("environment.max_turns: with 1 no call is ever") != std::string::npos;
    });
  };
  EXPECT_TRUE(is_warned_about("1"));
  EXPECT_FALSE(is_warned_about("2"));
}

TEST_F(EnvironmentRecipe, AnEnvironmentDrawsNothing) {
  const std::string text = replaced(kToolsBase, "  generator: {model: FOLDER/student}\n", "");
  const std::string message = error_of(text, {"generation.role=tools"});
  EXPECT_NE(message.find("generation.role: 'tools' is an environment; give the generator a role"),
            std::string::npos)
      << message;
}

// Rules open the template: generators render with it what the student learns from.
TEST_F(EnvironmentRecipe, TheTemplateTeachesCallsAndPrintsNoOtherDay) {
  load(kToolsBase);
  const auto open = [&](std::vector<std::string> overrides) {
    for (std::string& one : overrides)
      one = with_folder(one);
    return launch::load_recipe(folder_ / "r.yaml", overrides);
  };
  const auto refusal = [&](const std::string& change) {
    return message_of([&] { open({change}); });
  };
  EXPECT_NO_THROW(open({}));
  const std::string without = refusal("data.chat_template=FOLDER/other.jinja");
  EXPECT_NE(without.find("environment.tool_format: auto finds no tool format"), std::string::npos)
      << without;

  // A format that the recipe names does not make the template print calls.
  const std::string silent = message_of([&] {
    open({"data.chat_template=FOLDER/other.jinja", "environment.tool_format=hermes"});
  });
  EXPECT_NE(silent.find("the chat template leaves out an assistant's tool calls"),
            std::string::npos)
      << silent;
  EXPECT_NE(silent.find("; give a chat template with tools by data.chat_template"),
            std::string::npos)
      << silent;
  EXPECT_EQ(silent.find("[invalid_argument]"), std::string::npos) << silent;

  const std::string dated = refusal("data.chat_template=FOLDER/dated.jinja");
  EXPECT_NE(dated.find("data.template_date: is missing: the chat template prints the day"),
            std::string::npos)
      << dated;
  EXPECT_NO_THROW(
      open({"data.chat_template=FOLDER/dated.jinja", "data.template_date=2026-11-23"}));
}

TEST_F(EnvironmentRecipe, LoadsAsSaved) {
  expect_loads_as_saved(load(kToolsBase));
  expect_loads_as_saved(load(kToolsBase, {kService}));
  expect_loads_as_saved(load(kRejectionToolsBase));
  expect_loads_as_saved(load(kTaughtToolsBase));
}

}  // namespace
}  // namespace retort::test
