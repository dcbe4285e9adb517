// Whole runs with support: student and union: the student names ids, its teacher scores them, in
// several layouts, the same again after a stop, from every replica, and without what was kept.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/file.h"
#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {
namespace {

GoldenRecipe supported(const std::string& support, const std::string& k = "5") {
  return {.teacher = "teacher",
          .steps = 4,
          .distill = {{"payload", "topk"},
                      {"support", support},
                      {"loss_top_k", k},
                      {"loss_type", "reverse_kl"},
                      {"temperature", "1.3"}}};
}

// The run's folder; the test fails unless it ends with `exit_code`.
fs::path launch_supported(const fs::path& folder, const GoldenRecipe& recipe,
                          std::vector<std::string> arguments = {}, int exit_code = 0) {
  arguments.insert(arguments.begin(), {"launch", write_recipe(folder, recipe).string()});
  const CommandResult result = retort(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.output;
  return folder / "run";
}

void expect_same_run(const fs::path& run, const fs::path& other) {
  EXPECT_EQ(timeless_metrics(run), timeless_metrics(other));
  EXPECT_EQ(read_file(run / "final/model.safetensors"),
            read_file(other / "final/model.safetensors"));
}

void expect_near_columns(const fs::path& run, const fs::path& other, double tolerance) {
  for (const char* key : {"loss", "kd_loss", "teacher_mass", "student_mass", "grad_norm"}) {
    const auto got = column(run, key), want = column(other, key);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], tolerance * std::abs(want[i])) << key << " of step " << i + 1;
  }
}

// Runs of one process that several tests compare with, each made when it is first asked for.
class SupportRun : public testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() { made_ = new TemporaryFolder; }
  static void TearDownTestSuite() { delete made_; }
  static fs::path one_process(const std::string& support) {
    const fs::path place = *made_ / support;
    return fs::exists(place) ? place / "run" : launch_supported(place, supported(support));
  }
  static fs::path of_full_payload() {
    const fs::path place = *made_ / "full";
    if (fs::exists(place)) return place / "run";
    GoldenRecipe recipe = supported("teacher");
    recipe.distill = {{"payload", "full"}, {"loss_type", "reverse_kl"}, {"temperature", "1.3"}};
    return launch_supported(place, recipe);
  }

  static TemporaryFolder* made_;
};
TemporaryFolder* SupportRun::made_ = nullptr;

TEST_P(SupportRun, ResumesAndIsTheSameFromTwoReplicas) {
  TemporaryFolder folder;
  GoldenRecipe recipe = supported(GetParam());
  const fs::path whole = one_process(GetParam());
  ASSERT_FALSE(HasFailure());
  launch_supported(folder / "stopped", recipe, {"train.exit_interval=2"}, 4);
  const fs::path resumed = launch_supported(folder / "stopped", recipe, {"--resume"});
  expect_same_run(resumed, whole);

  // A replica of two keeps half of the requests.
  recipe.teacher_replicas = 2;
  expect_same_run(launch_supported(folder / "replicas", recipe), whole);
}

TEST_P(SupportRun, IsThatOfOneProcessInOtherLayouts) {
  TemporaryFolder folder;
  GoldenRecipe recipe = supported(GetParam());
  const fs::path one = one_process(GetParam());
  recipe.student_world = ", tp: 2";
  recipe.teacher_world = ", tp: 2";
  expect_near_columns(launch_supported(folder / "tp", recipe), one, 1e-3);
  recipe.student_world = ", pp: 2";
  expect_near_columns(launch_supported(folder / "pp", recipe), one, 1e-3);
  recipe.student_world = "";
  recipe.dp = 2;
  recipe.rows = 2;  // of the same batch
  expect_near_columns(launch_supported(folder / "dp", recipe), one, 1e-3);
}

// Two roles that hold one model, whether both answer each row or each its own rows, teach what that
// model teaches alone.
TEST_P(SupportRun, OfTwoTeachersWithOneModelIsThatOfOne) {
  TemporaryFolder folder;
  const GoldenRecipe recipe = supported(GetParam());
  const fs::path one = one_process(GetParam());
  const std::string second =
      "roles.second={model: " + (goldens() / "teacher").string() + ", world: {threads: 1}}";
  const std::string mixed =
      "distill.teachers=[{role: teacher, weight: 0.25}, {role: second, weight: 0.75}]";
  const std::string routed =
      "distill.teachers=[{role: teacher, when: {domain: a}}, {role: second, when: {domain: b}}]";
  const std::string tp = "roles.student.world.tp=2", pp = "roles.student.world.pp=2";
  expect_near_columns(launch_supported(folder / "mixed", recipe, {second, mixed, pp}), one, 1e-3);
  expect_near_columns(launch_supported(folder / "routed", recipe, {second, routed, tp}), one, 1e-3);
}

// The student names ids at what it has just drawn too; lmbda 0.5: and in between at rows of the
// data.
TEST_P(SupportRun, OfDrawnBatchesIsThatOfOneProcessInOtherLayouts) {
  TemporaryFolder folder;
  OnPolicyRecipe recipe{.recipe = "distill",
                        .data = write_prompts(folder),
                        .teacher = "teacher",
                        .rows = 4,
                        .steps = 6,
                        .block = supported(GetParam()).distill,
                        .generation = {{"max_new_tokens", "10"}, {"save_samples", "true"}},
                        .data_extra = "  packing: false\n"};
  recipe.block["lmbda"] = "0.5";
  const auto launch = [&](const std::string& name, const std::string& world) {
    recipe.student_world = world;
    const CommandResult result =
        retort({"launch", write_on_policy(folder / name, recipe).string()});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return folder / name / "run";
  };
  const fs::path one = launch("one", "");
  ASSERT_FALSE(HasFailure());
  const size_t drawn = read_samples(one).size();
  EXPECT_GT(drawn, 0u);
  EXPECT_LT(drawn, 6u * 4) << "or all batches are drawn";

  for (const std::string split : {"tp", "pp"}) {
    const fs::path other = launch(split, ", " + split + ": 2");
    ASSERT_FALSE(HasFailure());
    expect_same_samples(other, one);
    expect_near_columns(other, one, 1e-3);
  }
}

// All ids, from whichever side: the divergence itself.
TEST_P(SupportRun, OfAllIdsIsTheFullPayload) {
  TemporaryFolder folder;
  const fs::path named = launch_supported(folder / "named", supported(GetParam(), "64"));
  expect_near_columns(named, of_full_payload(), 1e-4);
}

// The first step starts from the same student: what differs is whose ids they are.
TEST(SupportMass, IsThatOfItsSide) {
  TemporaryFolder folder;
  const auto masses = [&](const std::string& support) {
    const fs::path run = launch_supported(folder / support, supported(support));
    return std::pair(column(run, "teacher_mass").at(0), column(run, "student_mass").at(0));
  };
  const auto teacher = masses("teacher"), student = masses("student"), both = masses("union");
  EXPECT_GT(teacher.first, student.first);
  EXPECT_LT(teacher.second, student.second);
  EXPECT_GT(both.first, teacher.first);
  EXPECT_GT(both.second, student.second);
}

TEST_P(SupportRun, IsPlannedAndChecked) {
  TemporaryFolder folder;
  const fs::path recipe = write_recipe(folder.path(), supported(GetParam()));
  const CommandResult plan = retort({"plan", recipe.string()});
  EXPECT_EQ(plan.exit_code, 0) << plan.output;
  const std::string bytes = std::string(GetParam()) == "union" ? "84" : "24";
  EXPECT_NE(plan.output.find("link teacher -> student: " + bytes + " bytes per target token"),
            std::string::npos)
      << plan.output;
  EXPECT_NE(plan.output.find("link student -> teacher: 20 bytes per target token"),
            std::string::npos)
      << plan.output;
  const CommandResult check = retort({"check", recipe.string()});
  EXPECT_EQ(check.exit_code, 0) << check.output;
}

// 40 ids more are 160 bytes more for each target token on their way back, of each row once, and as
// many on their way there from each tp rank of the student: what the plan counts.
TEST(SupportBytes, OfNamedIdsComeFromEachTpRank) {
  TemporaryFolder folder;
  const auto bytes = [&](int64_t tp, const std::string& k) {
    GoldenRecipe recipe = supported("student", k);
    recipe.student_world = ", tp: " + std::to_string(tp);
    const fs::path run = launch_supported(folder / (std::to_string(tp) + "_" + k), recipe);
    const auto sum = [&](const char* key) {
      const std::vector<double> all = column(run, key);
      return std::accumulate(all.begin(), all.end(), 0.0);
    };
    return std::pair(sum("rpc/teacher/teacher.forward/bytes_sent"),
                     sum("rpc/teacher/teacher.forward/bytes_received"));
  };
  for (const int64_t tp : {1, 2}) {
    const auto few = bytes(tp, "5"), many = bytes(tp, "45");
    const double sent = many.first - few.first, received = many.second - few.second;
    ASSERT_GT(received, 0);
    EXPECT_NEAR(sent, static_cast<double>(tp) * received, 0.02 * sent) << "tp: " << tp;

    const fs::path recipe = folder / (std::to_string(tp) + "_5") / "recipe.yaml";
    const CommandResult plan = retort({"plan", recipe.string()});
    const std::string line =
        "link student -> teacher: " + std::to_string(20 * tp) + " bytes per target token";
    EXPECT_NE(plan.output.find(line), std::string::npos) << plan.output;
  }
}

TEST_P(SupportRun, IsRefusedWhereItCannotBe) {
  TemporaryFolder folder;
  const fs::path recipe = write_recipe(folder.path(), supported(GetParam()));
  const auto refused = [&](const std::string& command, const std::vector<std::string>& rest,
                           const std::string& words) {
    std::vector<std::string> arguments{command, recipe.string()};
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    const CommandResult result = retort(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_NE(result.output.find(words), std::string::npos) << result.output;
  };
  refused("launch",
          {"roles.teacher=null", "distill.teachers=[{cache: " + folder.path().string() + "}]"},
          "no cache holds the ids that the student names");
  refused("cache", {"--output", (folder / "cache").string()},
          "asks for ids that the student names in each step");
  refused("launch", {"distill.payload=full", "distill.loss_top_k=64"},
          "support has no effect without payload: topk");
  refused("launch", {"distill.tail=drop"}, "works with loss_type: forward_kl only");
}

INSTANTIATE_TEST_SUITE_P(Supports, SupportRun, testing::Values("student", "union"));

}  // namespace
}  // namespace retort::test
