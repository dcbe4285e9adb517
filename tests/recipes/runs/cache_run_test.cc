// Students that train from a cache of their teacher's payloads: the bits of a run whose teacher
// answers, other layouts within 1e-6, and as many bytes as `retort plan` says.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/file.h"
#include "tests/recipes/run_support/cache_support.h"

namespace retort::test {
namespace {

// Five steps of four rows: each of the golden rows once.
GoldenRecipe recipe_of(const std::string& payload) {
  GoldenRecipe recipe{.teacher = "teacher"};
  recipe.distill = {{"payload", payload}, {"kd_ratio", "0.7"}, {"temperature", "1.5"}};
  if (payload == "topk") recipe.distill["loss_top_k"] = "8";
  if (payload == "sampled") {
    recipe.distill["num_samples"] = "6";
    recipe.distill["replacement"] = "false";
  }
  return recipe;
}

std::string model_of(const fs::path& run) { return read_file(run / "final/model.safetensors"); }

// What several tests read, each made when it is first asked for: a run whose teacher answers, and
// a cache of its payloads, with its recipe in the folder above.
class Made {
 public:
  fs::path live(const std::string& payload) {
    const fs::path place = folder_ / payload / "live";
    if (fs::exists(place)) return place / "run";
    const CommandResult result =
        retort({"launch", write_recipe(place, recipe_of(payload)).string()});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return place / "run";
  }
  fs::path cache(const std::string& payload) {
    const fs::path place = folder_ / payload / "writer";
    return fs::exists(place) ? place / "cache" : write_cache(place, recipe_of(payload));
  }

 private:
  TemporaryFolder folder_;
};

class CachedRun : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() { made_ = new Made; }
  static void TearDownTestSuite() { delete made_; }
  static Made* made_;
};
Made* CachedRun::made_ = nullptr;

TEST_P(CachedRun, HasTheBitsOfItsTeacher) {
  TemporaryFolder folder;
  const fs::path live = made_->live(GetParam()), cache = made_->cache(GetParam());
  ASSERT_FALSE(HasFailure());
  EXPECT_FALSE(fs::exists(cache / "metrics.jsonl")) << "nobody trains";

  // No teacher is beside the students. That a cache serves another one does not depend on what it
  // holds.
  std::vector<std::string> students{"first"};
  if (GetParam() == "topk") students.emplace_back("second");
  for (const std::string& name : students) {
    const CommandResult result = run_cached(folder / name, recipe_of(GetParam()), cache);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    const fs::path run = folder / name / "run";
    EXPECT_EQ(timeless_metrics(run), timeless_metrics(live));
    EXPECT_EQ(model_of(run), model_of(live));
    const auto status = nlohmann::json::parse(read_file(run / "status.json"));
    EXPECT_EQ(status.at("processes").size(), 1u);
  }
}

// The formula of `retort plan`, of the recipe that writes and of the one that reads.
TEST_P(CachedRun, TakesAsManyBytesAsThePlanSays) {
  const fs::path cache = made_->cache(GetParam());
  ASSERT_FALSE(HasFailure());
  const auto packs = manifest_of(cache).at("packs");
  const int64_t sequences = packs.at("sequences"), tokens = packs.at("target_tokens");
  EXPECT_EQ(sequences, 20);
  EXPECT_EQ(packs.at("bytes"), bytes_on_disk(cache));

  const auto plan_of = [&](Overrides overrides) {
    overrides.insert(overrides.begin(),
                     {"plan", (cache.parent_path() / "recipe.yaml").string(), "--json"});
    const CommandResult result = retort(overrides);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    return nlohmann::json::parse(result.output.substr(result.output.find('{')));
  };
  const auto reads = plan_of(from_cache(cache)).at("caches").at(0);
  EXPECT_EQ(reads.at("bytes"), bytes_on_disk(cache));
  EXPECT_EQ(reads.at("sequences"), sequences);

  const auto writes = plan_of({}).at("may_be_cached").at(0);
  const auto number = [&](const char* key) { return writes.at(key).get<double>(); };
  EXPECT_EQ(number("bytes_per_target_token") * static_cast<double>(tokens) +
                number("bytes_per_sequence") * static_cast<double>(sequences) +
                number("bytes_once"),
            static_cast<double>(bytes_on_disk(cache)));
}

INSTANTIATE_TEST_SUITE_P(Payloads, CachedRun,
                         testing::Values("hidden_states", "topk", "full", "sampled"),
                         [](const auto& info) { return info.param; });

void expect_near_columns(const fs::path& run, const fs::path& wanted) {
  for (const char* key : {"loss", "kd_loss", "ce_loss", "grad_norm"}) {
    const std::vector<double> got = column(run, key), want = column(wanted, key);
    ASSERT_EQ(got.size(), want.size()) << key;
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], want[i], 1e-6 * std::abs(want[i])) << key << " of step " << i + 1;
  }
}

struct LayoutCase {
  const char* name;
  const char* payload;
  GoldenRecipe writer, reader;
};

class CachedLayout : public testing::TestWithParam<LayoutCase> {};

// Written by two ranks in packs of one row; read in packs of four, or by ranks that share a model.
// (What a student of tp 2 computes itself differs by more than 1e-6 from one of tp 1, so it is
// compared with one whose teacher answers.)
TEST_P(CachedLayout, AgreesWithARunWhoseTeacherAnswers) {
  TemporaryFolder folder;
  const fs::path cache = write_cache(folder / "writer", GetParam().writer);
  const CommandResult live =
      retort({"launch", write_recipe(folder / "live", GetParam().reader).string()});
  ASSERT_EQ(live.exit_code, 0) << live.output;
  const CommandResult cached = run_cached(folder / "cached", GetParam().reader, cache);
  ASSERT_EQ(cached.exit_code, 0) << cached.output;
  expect_near_columns(folder / "cached" / "run", folder / "live" / "run");
}

GoldenRecipe with(GoldenRecipe recipe, int64_t dp, int64_t rows, int64_t accumulation,
                  const std::string& world = "") {
  recipe.dp = dp;
  recipe.rows = rows;
  recipe.accumulation = accumulation;
  recipe.student_world = world;
  return recipe;
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CachedLayout,
    testing::Values(LayoutCase{"dp2_to_dp1", "topk", with(recipe_of("topk"), 2, 1, 2),
                               with(recipe_of("topk"), 1, 4, 1)},
                    LayoutCase{"dp1_to_dp2", "hidden_states",
                               with(recipe_of("hidden_states"), 1, 4, 1),
                               with(recipe_of("hidden_states"), 2, 2, 1)},
                    LayoutCase{"tp2_full", "full", with(recipe_of("full"), 1, 2, 2),
                               with(recipe_of("full"), 1, 4, 1, ", tp: 2")},
                    LayoutCase{"tp2_hidden", "hidden_states",
                               with(recipe_of("hidden_states"), 2, 2, 1),
                               with(recipe_of("hidden_states"), 1, 4, 1, ", tp: 2")},
                    LayoutCase{"pp2_topk", "topk", with(recipe_of("topk"), 1, 4, 1, ", tp: 2"),
                               with(recipe_of("topk"), 1, 4, 1, ", pp: 2")}),
    [](const auto& info) { return info.param.name; });

// A second epoch in another order: the same rows from the cache, the loss within rounding.
TEST(CachedRows, ServeEveryEpoch) {
  TemporaryFolder folder;
  GoldenRecipe recipe = recipe_of("topk");
  recipe.steps = 10;
  const Overrides packed{"data.shuffle=true", "data.packing=true"};
  Overrides live{"launch", write_recipe(folder / "live", recipe).string()};
  live.insert(live.end(), packed.begin(), packed.end());
  const CommandResult answered = retort(live);
  ASSERT_EQ(answered.exit_code, 0) << answered.output;
  const fs::path cache = write_cache(folder / "writer", recipe, packed);
  const CommandResult cached = run_cached(folder / "cached", recipe, cache, packed);
  ASSERT_EQ(cached.exit_code, 0) << cached.output;
  expect_near_columns(folder / "cached" / "run", folder / "live" / "run");

  // With the rows' tokens from a file too.
  Overrides tokens = packed;
  tokens.push_back("data.tokenized_cache=" + (folder / "tokens").string());
  const CommandResult both = run_cached(folder / "both", recipe, cache, tokens);
  ASSERT_EQ(both.exit_code, 0) << both.output;
  EXPECT_FALSE(fs::is_empty(folder / "tokens"));
  expect_near_columns(folder / "both" / "run", folder / "live" / "run");
}

// One teacher answers, the other has answered: distill.teachers[].cache beside a role.
TEST(CachedRows, MixWithATeacherThatAnswers) {
  TemporaryFolder folder;
  const GoldenRecipe recipe = recipe_of("topk");
  const fs::path cache = write_cache(folder / "writer", recipe);
  const std::string both =
      "distill.teachers=[{role: teacher, weight: 0.5}, {cache: " + cache.string() +
      ", weight: 0.5}]";
  const CommandResult mixed =
      retort({"launch", write_recipe(folder / "mixed", recipe).string(), both});
  ASSERT_EQ(mixed.exit_code, 0) << mixed.output;
  const CommandResult live = retort({"launch", write_recipe(folder / "live", recipe).string()});
  ASSERT_EQ(live.exit_code, 0) << live.output;
  // Two halves of the same teacher.
  const double got = column(folder / "mixed" / "run", "kd_loss").at(0);
  const double want = column(folder / "live" / "run", "kd_loss").at(0);
  EXPECT_NEAR(got, want, 1e-6 * want);
}

}  // namespace
}  // namespace retort::test
