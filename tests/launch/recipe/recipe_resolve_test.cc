// What a good recipe means: defaults, overrides, the environment, units, and the resolved text.
#include <cstdlib>
#include <fstream>

#include "base/file.h"
#include "launch/backends/role_variables.h"
#include "launch/yaml/resolved_yaml.h"
#include "launch/yaml/role_values.h"
#include "tests/launch/recipe/recipe_fixture.h"
#include "tests/support/thrown.h"

namespace retort::test {
namespace {

namespace fs = std::filesystem;

TEST_F(RecipeTest, OneRoleNamedTeacherNeedsNoBlock) {
  for (const char* without : {"distill=null", "distill.teachers=[]"}) {
    const recipes::Recipe recipe = load(kDistill, {without});
    ASSERT_TRUE(recipe.distill.has_value()) << without;
    ASSERT_EQ(recipe.distill->teachers.size(), 1u) << without;
    EXPECT_EQ(recipe.distill->teachers[0].role, "teacher");
  }
}

TEST_F(RecipeTest, NullOnTheCommandLineRemovesABlockAKeyOrAnItem) {
  const recipes::Recipe recipe =
      load(replaced(kDistill, "jsonl}]", "jsonl}, {path: FOLDER/missing.jsonl}]"),
           {"recipe=sft", "distill=null", "roles.teacher=null", "data.train.1=null",
            "output_dir=null", "output_dir=elsewhere"});
  EXPECT_EQ(recipe.roles.size(), 1u);
  EXPECT_EQ(recipe.data.train.size(), 1u);
  EXPECT_EQ(recipe.output_dir, "elsewhere");
  EXPECT_EQ(load(kSft, {"train.learning_rate=5", "train.learning_rate=null"}).train.learning_rate,
            2e-5);
}

TEST_F(RecipeTest, RolesKeepTheOrderInWhichTheyAreWritten) {
  std::vector<std::string> names;
  for (const auto& [name, role] :
       load(replaced(kDistill, "  student:\n    model: FOLDER/student\n", "") + "",
            {"roles.student.model=" + (folder_ / "student").string()})
           .roles)
    names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"teacher", "student"}));
}

using recipes::Recipe;

TEST_F(RecipeTest, DefaultsAreThoseOfTheReference) {
  const Recipe recipe = load(replaced(kSft, "train:\n  max_steps: 10\n", ""));
  EXPECT_EQ(recipe.seed, 42);
  EXPECT_EQ(recipe.train.max_steps, 200);
  EXPECT_FALSE(recipe.train.num_train_epochs);
  EXPECT_EQ(recipe.train.per_device_train_batch_size, 8);
  EXPECT_FALSE(recipe.train.tokens_per_batch);
  EXPECT_EQ(recipe.train.learning_rate, 2e-5);
  EXPECT_EQ(recipe.train.lr_scheduler_type, parallel::LrSchedulerType::kCosine);
  EXPECT_EQ(recipe.train.save_total_limit, 3);
  EXPECT_TRUE(recipe.data.packing);
  EXPECT_FALSE(recipe.distill);
  EXPECT_EQ(recipe.launch.collective_timeout, std::chrono::seconds(120));
  EXPECT_EQ(recipe.rpc.max_inflight_bytes.bytes, uint64_t{2} << 30);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(RecipeTest, AlternativesReplaceTheDefaults) {
  const Recipe recipe =
      load(replaced(kSft, "max_steps: 10", "num_train_epochs: 1.5\n  tokens_per_batch: 4096"));
  EXPECT_FALSE(recipe.train.max_steps);
  EXPECT_EQ(recipe.train.num_train_epochs, 1.5);
  EXPECT_FALSE(recipe.train.per_device_train_batch_size);
  EXPECT_EQ(recipe.train.tokens_per_batch, 4096);
}

TEST_F(RecipeTest, DistillBlockBecomesLossAndRequest) {
  const Recipe recipe = load(replaced(kDistill, "distill:", R"(distill:
  payload: topk
  payload_dtype: bfloat16
  loss_top_k: 16
  loss_type: jsd
  beta: 0.25
  temperature: 2
  kd_ratio: 0.5)"));
  EXPECT_EQ(recipe.num_processes(), 3);
  const auto loss = recipe.distill->divergence();
  EXPECT_EQ(loss.type, losses::DivergenceType::kJsd);
  EXPECT_EQ(loss.beta, 0.25);
  EXPECT_EQ(loss.temperature, 2.0);
  EXPECT_EQ(loss.kd_ratio, 0.5);
  EXPECT_EQ(loss.tail, losses::Tail::kBucket);
  const auto spec = recipe.distill->payload_spec(recipe.seed);
  EXPECT_EQ(spec.kind, roles::PayloadKind::kTopK);
  EXPECT_EQ(spec.top_k, 16);
  EXPECT_EQ(spec.temperature, 2.0);
  EXPECT_TRUE(spec.bfloat16);
}

TEST_F(RecipeTest, OverridesReplaceAddAndRemove) {
  const std::string source = "{path: FOLDER/train.jsonl}";
  const Recipe recipe = load(replaced(kDistill, source, source + ", " + source),
                             {"train.max_steps=null", "train.num_train_epochs=2",
                              "roles.teacher.world={dp: 1, threads: 3}", "rpc.timeout=5m",
                              "data.train.0.weight=0.5", "seed=7", "seed=8", "data.packing=false"});
  EXPECT_FALSE(recipe.train.max_steps);
  EXPECT_EQ(recipe.train.num_train_epochs, 2);
  EXPECT_EQ(recipe.roles.at("teacher").world.dp, 1);
  EXPECT_EQ(recipe.roles.at("teacher").world.threads, 3);
  EXPECT_EQ(recipe.rpc.timeout, std::chrono::minutes(5));
  EXPECT_EQ(recipe.data.train[0].weight, 0.5);
  EXPECT_EQ(recipe.seed, 8);
  EXPECT_FALSE(recipe.data.packing);
}

TEST_F(RecipeTest, EnvironmentIsExpandedInValues) {
  ::setenv("RETORT_TEST_ROOT", folder_.c_str(), 1);
  ::setenv("RETORT_TEST_STEPS", "17", 1);
  const std::string text =
      replaced(replaced(kSft, "FOLDER/student", "${RETORT_TEST_ROOT}/student"),
               "train:\n  max_steps: 10", "train: {max_steps: \"${RETORT_TEST_STEPS}\"}");
  const Recipe recipe = load(text, {"output_dir=\"a-$${x}-${RETORT_TEST_STEPS}\""});
  EXPECT_EQ(recipe.roles.at("student").model, (folder_ / "student").string());
  EXPECT_EQ(recipe.train.max_steps, 17);
  EXPECT_EQ(recipe.output_dir, "a-${x}-17");
}

TEST_F(RecipeTest, ATildeIsTheHomeFolder) {
  ::setenv("HOME", folder_.c_str(), 1);
  const std::string text =
      replaced(replaced(kSft, "FOLDER/student", "~/student"), "FOLDER/train", "~/train");
  const Recipe recipe = load(text, {"output_dir=~/run"});
  EXPECT_EQ(recipe.roles.at("student").model, (folder_ / "student").string());
  EXPECT_EQ(recipe.data.train[0].path, (folder_ / "train.jsonl").string());
  EXPECT_EQ(recipe.output_dir, (folder_ / "run").string());
}

TEST_F(RecipeTest, UnitsAreRead) {
  const Recipe recipe =
      load(replaced(kDistill, "data:",
                    "launch: {collective_timeout: 200s, stop_timeout: 2h, load_timeout: 90s}\n"
                    "rpc: {timeout: 250ms, max_inflight_bytes: 512KiB, max_message_bytes: "
                    "1000000}\ndata:"),
           {"roles.student.world.dp=2"});
  EXPECT_EQ(recipe.launch.collective_timeout, std::chrono::seconds(200));
  EXPECT_EQ(recipe.rpc.timeout, std::chrono::milliseconds(250));
  EXPECT_EQ(recipe.launch.stop_timeout, std::chrono::hours(2));
  EXPECT_EQ(recipe.rpc.max_inflight_bytes.bytes, 512u << 10);
  EXPECT_EQ(recipe.rpc.max_message_bytes.bytes, 1000000u);
}

TEST_F(RecipeTest, AnchorsAndFlowStyleAreRead) {
  const Recipe recipe = load(
      "{recipe: sft, output_dir: x, roles: {student: {model: &m FOLDER/student}},"
      " data: {train: [&s {path: FOLDER/train.jsonl}], eval: [*s]}}");
  EXPECT_EQ(recipe.data.eval[0].path, recipe.data.train[0].path);
}

// The block's own keys come first, then those of the first block that has them.
TEST_F(RecipeTest, MergedKeysAreThoseThatABlockDoesNotHave) {
  const std::string merging =
      replaced(replaced(kDistill, "  student:\n    model: FOLDER/student\n",
                        "  student: &student {model: FOLDER/student, dtype: bfloat16,"
                        " env: {A: '1', B: '2'}}\n"),
               "  teacher:\n    model: FOLDER/teacher\n",
               "  teacher:\n    <<: [{model: FOLDER/teacher}, *student]\n    env: {B: '3'}\n");
  Recipe recipe = load(merging);
  EXPECT_EQ(recipe.roles.at("student").model, (folder_ / "student").string());
  EXPECT_EQ(recipe.roles.at("teacher").model, (folder_ / "teacher").string());
  EXPECT_EQ(recipe.roles.at("teacher").dtype, recipe.roles.at("student").dtype);
  EXPECT_EQ(recipe.roles.at("teacher").env, (std::map<std::string, std::string>{{"B", "3"}}));

  // Copies: what the command line changes in one of them stays as it is in the other.
  recipe = load(merging, {"roles.student.env.A=5", "roles.teacher.world.threads=3"});
  EXPECT_EQ(recipe.roles.at("student").env.at("A"), "5");
  EXPECT_FALSE(recipe.roles.at("teacher").env.contains("A"));
  EXPECT_EQ(recipe.roles.at("teacher").world.threads, 3);
}

// 8 blocks, each of which merges ten times the one before, are 10^8 values.
TEST_F(RecipeTest, MergesOfMergesAreBounded) {
  std::string text = "x0: &x0 {a: 1}\n";
  for (int i = 1; i <= 8; ++i) {
    const std::string before = "*x" + std::to_string(i - 1);
    const std::string name = "x" + std::to_string(i);
    text += name + ": &" + name + "\n  <<: [" + before;
    for (int repeat = 1; repeat < 10; ++repeat)
      text += ", " + before;
    text += "]\n";
  }
  EXPECT_NE(error_of(text + kSft).find("more than 100000 values"), std::string::npos);
}

TEST_F(RecipeTest, ValuesWithoutATypeKeepYamlsOwn) {
  const Recipe recipe = load(replaced(
      kSft, "train: [",
      "chat_template_kwargs: {a: false, b: 'no', c: .5, d: +1, e: 0x1f, f: 0o17, g: 5., h: 1e3,"
      " i: 2026-11-23, j: +-1, k: Non, l: ~, m: -.5, n: '010', o: .e5}\n  train: ["));
  EXPECT_EQ(recipe.data.chat_template_kwargs.json,
            R"({"a":false,"b":"no","c":0.5,"d":1,"e":31,"f":15,"g":5.0,"h":1000.0,)"
            R"("i":"2026-11-23","j":"+-1","k":"Non","l":null,"m":-0.5,"n":"010","o":".e5"})");
}

TEST_F(RecipeTest, FieldsWithoutEffectMayStandAtTheirDefaults) {
  load(replaced(kDistill, "distill:", "distill:\n  beta: 0.5\n  loss_top_k: 64\n  tail: bucket"));
  ASSERT_EQ(warnings_.size(), 3u);
  EXPECT_NE(warnings_[0].find("r.yaml:15: distill.loss_top_k: has no effect without payload: topk"),
            std::string::npos)
      << warnings_[0];
}

TEST_F(RecipeTest, BetaAtTheEndsOfJsdIsWarnedAbout) {
  for (const char* beta : {"0.01", "0.99", "1.0"}) {
    load(
        replaced(kDistill, "distill:", std::string("distill:\n  loss_type: jsd\n  beta: ") + beta));
    EXPECT_EQ(warnings_.size(), 1u) << beta;
  }
  load(replaced(kDistill, "distill:", "distill:\n  loss_type: jsd\n  beta: 0.3"));
  EXPECT_TRUE(warnings_.empty());
}

// Reading the resolved text gives the same text, and it is not the text of the defaults.
TEST_F(RecipeTest, ResolvedRecipeReadsBackTheSame) {
  const std::string odd = folder_ / "odd ${name}: #1 \"x\".jsonl";
  std::ofstream(odd) << "{}\n";
  const Recipe recipe = load(
      replaced(
          replaced(
              kDistill, "train: [{path: FOLDER/train.jsonl}]",
              "train: [{path: 'FOLDER/odd $${name}: #1 \"x\".jsonl', columns: {prompt: 'true', "
              "completion: ~x}, weight: 0.3333333333333333}, {path: FOLDER/train.jsonl}]\n"
              "  eval: [{path: FOLDER/train.jsonl, format: text}]"),
          "[{role: teacher}]",
          "[{role: teacher, when: {domain: 'null', level: 3}}]\n  loss_type: skewed_kl\n  "
          "skew_lambda: 1.0e-7"),
      {"roles.teacher.env={GLOO_SOCKET_IFNAME: lo}", "train.learning_rate=3e-5",
       "rpc.max_message_bytes=1234567", "launch.stop_timeout=1500ms"});
  EXPECT_EQ(recipe.data.train[0].path, odd);

  // Written and read, with a variable's value that the text does not have.
  const std::string text = launch::resolved_yaml(recipe);
  std::ofstream(folder_ / "resolved.yaml") << text;
  EXPECT_EQ(text.find("lo}"), std::string::npos) << "the value of a variable";
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  const Recipe again = launch::load_recipe(folder_ / "resolved.yaml", {}, {.check_inputs = false});
  ::unsetenv("GLOO_SOCKET_IFNAME");

  // What is odd came through, and so did what was set.
  EXPECT_EQ(launch::resolved_yaml(again), text);
  EXPECT_EQ(again.data.train[0].path, odd);
  EXPECT_EQ(again.data.train[0].columns, recipe.data.train[0].columns);
  EXPECT_EQ(again.data.train[0].weight, 0.3333333333333333);
  EXPECT_EQ(again.distill->teachers[0].when,
            (std::map<std::string, std::string>{{"domain", "null"}, {"level", "3"}}));
  EXPECT_EQ(again.distill->skew_lambda, 1e-7);
  EXPECT_EQ(again.train.learning_rate, 3e-5);
  EXPECT_EQ(again.roles.at("teacher").env.at("GLOO_SOCKET_IFNAME"), "lo");
  EXPECT_EQ(again.launch.stop_timeout, std::chrono::milliseconds(1500));
  EXPECT_NE(text.find("num_train_epochs: null"), std::string::npos) << "every field stands in it:\n"
                                                                    << text;
}

// They may be secrets, and many read a run's folder: they stand in a file of their own.
class ResolvedVariables : public RecipeTest {
 protected:
  Recipe with_variables() {
    ::setenv("RETORT_TEST_KEY", "hf_4711", 1);
    Recipe recipe = load(kDistill, {"roles.student.env={HF_TOKEN: '${RETORT_TEST_KEY}', EMPTY: ''}",
                                    "roles.teacher.env={HF_TOKEN: \"a $${b} \\\"c\\\"\\n: #d\"}"});
    ::unsetenv("RETORT_TEST_KEY");
    return recipe;
  }
};

TEST_F(ResolvedVariables, AreNamesWithoutValues) {
  const Recipe recipe = with_variables();
  const std::string text = launch::resolved_yaml(recipe);
  EXPECT_NE(text.find("env: {EMPTY: null, HF_TOKEN: null}"), std::string::npos) << text;
  EXPECT_EQ(text.find("4711"), std::string::npos) << text;

  // A launcher finds them beside it.
  const fs::path file = folder_ / launch::kResolvedRecipe;
  std::ofstream(file) << text;
  launch::write_role_values(file, launch::role_values(recipe));
  const launch::LoadOptions options{.check_inputs = false};
  const Recipe again = launch::load_recipe(file, {}, options);
  EXPECT_EQ(again.roles.at("student").env, recipe.roles.at("student").env);
  EXPECT_EQ(again.roles.at("teacher").env, recipe.roles.at("teacher").env);
  EXPECT_EQ(fs::status(folder_ / launch::kRoleValues).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);

  // So does a job of --submit, beside a recipe of its own.
  const fs::path submitted = folder_ / launch::kSubmittedRecipe;
  std::ofstream(submitted) << text;
  launch::write_role_values(submitted, {{"student", {{"HF_TOKEN", "later"}, {"EMPTY", ""}}},
                                        {"teacher", {{"HF_TOKEN", "other"}}}});
  EXPECT_EQ(launch::load_recipe(submitted, {}, options).roles.at("student").env.at("HF_TOKEN"),
            "later");
  const std::vector<std::string> other{"roles.student.env.HF_TOKEN=another"};
  EXPECT_EQ(launch::load_recipe(file, other, options).roles.at("student").env.at("HF_TOKEN"),
            "another");

  // One that is cut short, and none where there is no variable.
  std::ofstream(folder_ / launch::kRoleValues, std::ios::trunc) << "student";
  expect_error(ErrorCode::kCorrupt, "roles.env is cut short",
               [&] { launch::load_recipe(file, {}, options); });
  EXPECT_EQ(launch::resolved_yaml(
                launch::load_recipe(file, {}, {.check_inputs = false, .env_values = false})),
            text)
      << "who needs no value does not open the file";
  launch::write_role_values(file, {});
  EXPECT_FALSE(fs::exists(folder_ / launch::kRoleValues));
}

// A copy of the recipe alone has no values; a process of a role needs the names.
TEST_F(ResolvedVariables, ACopyOfTheRecipeHasNoValues) {
  const Recipe recipe = with_variables();
  const std::string text = launch::resolved_yaml(recipe);
  const launch::LoadOptions options{.check_inputs = false};
  std::ofstream(folder_ / "copy.yaml") << text;
  expect_refused("roles.student.env.EMPTY: null means the value that EMPTY has here",
                 [&] { launch::load_recipe(folder_ / "copy.yaml", {}, options); });
  const Recipe names =
      launch::load_recipe(folder_ / "copy.yaml", {}, {.check_inputs = false, .env_values = false});
  EXPECT_EQ(names.roles.at("student").env.size(), 2u);
  EXPECT_EQ(launch::resolved_yaml(names), text);
  EXPECT_TRUE(launch::role_values(names).empty()) << "its values are those of its own process";
  const std::vector<std::string> written{"roles.student.env.EMPTY=''"};
  const launch::RoleValues known = launch::role_values(launch::load_recipe(
      folder_ / "copy.yaml", written, {.check_inputs = false, .env_values = false}));
  EXPECT_EQ(known, (launch::RoleValues{{"student", {{"EMPTY", ""}}}}));

  // A null that is not set here is not set there either: an empty text is another value.
  const auto passed_on = [](const Recipe& of) {
    return launch::role_variables(of, of.roles.at("student"));
  };
  EXPECT_FALSE(passed_on(names).contains("EMPTY"));
  EXPECT_EQ(passed_on(recipe).at("EMPTY"), "");
  ::setenv("EMPTY", "of this process", 1);
  const Recipe set =
      launch::load_recipe(folder_ / "copy.yaml", {}, {.check_inputs = false, .env_values = false});
  EXPECT_EQ(passed_on(set).at("EMPTY"), "of this process");
  ::unsetenv("EMPTY");
}

TEST_F(RecipeTest, WhatIsShownOfAnOverrideHasNoValueOfAVariable) {
  for (const char* open : {"train.max_steps=3", "roles.student.world.dp=2", "output_dir=env",
                           "roles.environment.model=a"})
    EXPECT_FALSE(launch::has_role_values(open)) << open;
  for (const std::string key : {"roles.a.env.HF_TOKEN", "roles.a.env", "roles.a", "roles"})
    EXPECT_TRUE(launch::has_role_values(key + "={env: {HF_TOKEN: secret}}")) << key;
}

TEST_F(RecipeTest, ResolvedSftHasNoDistillBlock) {
  const std::string text = launch::resolved_yaml(load(kSft));
  EXPECT_NE(text.find("distill: null\n"), std::string::npos) << text;
  std::ofstream(folder_ / "resolved.yaml") << text;
  EXPECT_EQ(launch::resolved_yaml(
                launch::load_recipe(folder_ / "resolved.yaml", {}, {.check_inputs = false})),
            text);
}

}  // namespace
}  // namespace retort::test
