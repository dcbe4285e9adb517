// Whole reward_model runs against a single-process loop around TRL's own RewardTrainer, 5 AdamW
// steps, in several layouts; what is saved against what transformers saves.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/decoder/sequence_scores.h"
#include "models/ops/packed.h"
#include "models/safetensors/safetensors.h"
#include "tests/recipes/run_support/disturbed_run.h"
#include "tests/recipes/run_support/golden_support.h"

namespace retort::test {
namespace {

const std::vector<std::string> kColumns{"loss", "grad_norm", "accuracy", "margin", "mean_reward"};
const std::vector<std::string> kEvaluated{"eval_loss", "eval_accuracy", "eval_margin",
                                          "eval_mean_reward"};
// Scores of about 1, whose last bit is worth 1e-7, after five steps.
constexpr double kAbsolute = 2e-6;

std::string start_of(const std::string& name) {
  if (name == "objectives") return "reward_two";
  return name == "end_is_padding" ? "reward_eos" : "reward_one";
}

// The recipe of a case beside its run folder, folder/run.
std::string write_case(const fs::path& folder, const std::string& name) {
  std::string recipe = golden_cases("reward").at(name).at("recipe");
  for (const auto& [what, with] : std::vector<std::pair<std::string, std::string>>{
           {"$GOLDENS", goldens().string()}, {"$RUN", (folder / "run").string()}})
    for (size_t at = recipe.find(what); at != std::string::npos; at = recipe.find(what, at))
      recipe.replace(at, what.size(), with);
  fs::create_directories(folder);
  std::ofstream(folder / "recipe.yaml") << recipe;
  return (folder / "recipe.yaml").string();
}

fs::path run_case(const TemporaryFolder& folder, const std::string& name,
                  const std::vector<std::string>& settings = {}) {
  return run_recipe_text(folder.path(), golden_cases("reward").at(name).at("recipe"), settings);
}

void expect_golden(const fs::path& run, const std::string& name) {
  const nlohmann::json golden = golden_cases("reward").at(name);
  expect_columns(run, golden, kColumns, kAbsolute);
  expect_columns(run, golden, kEvaluated, kAbsolute);
  expect_same_parameters(run, start_of(name), "reward_changes", name);
}

class RewardRun : public testing::TestWithParam<std::string> {};

TEST_P(RewardRun, MatchesTrl) {
  TemporaryFolder folder;
  const fs::path run = run_case(folder, GetParam());
  ASSERT_FALSE(HasFailure());
  expect_golden(run, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Cases, RewardRun,
                         testing::Values("bradley_terry", "center", "margin", "objectives",
                                         "end_is_padding"),
                         [](const auto& info) { return info.param; });

// With an adapter the head is trained whole beside it: it begins where the model does, and merged
// it is a model that scores as the adapter does.
TEST(RewardAdapter, TrainsItsHeadToo) {
  TemporaryFolder folder;
  const double want = golden_cases("reward").at("bradley_terry").at("loss")[0];
  const fs::path trained =
      run_case(folder, "bradley_terry", {"roles.student.lora={r: 4, lora_alpha: 16}"});
  ASSERT_FALSE(HasFailure());
  EXPECT_NEAR(column(trained, "loss").at(0), want, 1e-6);

  const fs::path adapter = folder / "adapter", merged = folder / "merged";
  fs::rename(fs::canonical(trained / "final"), adapter);  // which is a link
  const auto config = nlohmann::json::parse(read_file(adapter / "adapter_config.json"));
  EXPECT_EQ(config.at("task_type"), "SEQ_CLS");
  EXPECT_EQ(config.at("modules_to_save"), nlohmann::json::array({"score"}));
  const auto result = retort({"model", "merge", adapter.string(), "--output", merged.string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const std::string head = "score.weight";
  const at::Tensor own = models::SafetensorsReader(adapter / "adapter_model.safetensors")
                             .get("base_model.model." + head);
  EXPECT_TRUE(at::equal(models::SafetensorsReader(merged).get(head), own));
  EXPECT_FALSE(
      at::equal(models::SafetensorsReader(goldens() / start_of("bradley_terry")).get(head), own));

  TemporaryFolder from_adapter, from_merged;
  const fs::path beside =
      run_case(from_adapter, "bradley_terry",
               {"roles.student.lora={r: 4, lora_alpha: 16, adapter: " + adapter.string() + "}"});
  const fs::path whole =
      run_case(from_merged, "bradley_terry", {"roles.student.model=" + merged.string()});
  ASSERT_FALSE(HasFailure());
  for (const char* key : {"loss", "margin", "mean_reward"})
    EXPECT_NEAR(column(beside, key).at(0), column(whole, key).at(0), 1e-5) << key;
  EXPECT_GT(std::abs(column(beside, "loss").at(0) - want), 1e-4);
}

// Against PEFT's own model: losses, gradient norms, factors and head, in two layouts.
TEST(RewardAdapter, MatchesPeft) {
  const nlohmann::json want = golden_cases("lora").at("reward_model_reward");
  const std::string file = "adapter_model.safetensors";
  for (const auto& settings : std::vector<std::vector<std::string>>{
           {},
           {"roles.student.world.tp=2", "roles.student.world.sequence_parallel=true"},
           {"roles.student.world.pp=2", "train.gradient_checkpointing=true"}}) {
    TemporaryFolder folder;
    const fs::path run = run_recipe_text(folder.path(), want.at("recipe"), settings);
    ASSERT_FALSE(HasFailure());
    expect_columns(run, want, {"loss", "grad_norm"}, kAbsolute);
    const ParameterError error =
        tensor_error(run / "final" / file, goldens() / "lora_reward" / file, "lora_changes",
                     "reward_model_reward");
    EXPECT_LE(error.relative, 1e-5);
    EXPECT_LE(error.largest, 5e-5);
  }
}

struct RewardSplit {
  std::string name, golden;
  std::vector<std::string> settings;
};
class RewardLayouts : public testing::TestWithParam<RewardSplit> {};

TEST_P(RewardLayouts, MatchTrl) {
  TemporaryFolder folder;
  const fs::path run = run_case(folder, GetParam().golden, GetParam().settings);
  ASSERT_FALSE(HasFailure());
  expect_golden(run, GetParam().golden);
}

INSTANTIATE_TEST_SUITE_P(
    Splits, RewardLayouts,
    testing::Values(
        RewardSplit{
            "dp", "margin", {"roles.student.world.dp=2", "train.per_device_train_batch_size=2"}},
        RewardSplit{"tp", "objectives", {"roles.student.world.tp=2"}},
        RewardSplit{"tp_sequence_parallel",
                    "center",
                    {"roles.student.world.tp=2", "roles.student.world.sequence_parallel=true"}},
        RewardSplit{"pp", "end_is_padding", {"roles.student.world.pp=2"}},
        RewardSplit{"pp_dp_sharded",
                    "center",
                    {"roles.student.world.pp=2", "roles.student.world.dp=2",
                     "roles.student.world.distributed_optimizer=true",
                     "train.gradient_accumulation_steps=1"}}),
    [](const auto& info) { return info.param.name; });

// The comparisons can fail: each of these is far outside the tolerances.
class RewardRunDetects : public testing::TestWithParam<RewardSplit> {};

TEST_P(RewardRunDetects, AnotherLoss) {
  TemporaryFolder folder;
  const fs::path run = run_case(folder, GetParam().golden, GetParam().settings);
  ASSERT_FALSE(HasFailure());
  const nlohmann::json golden = golden_cases("reward").at(GetParam().golden);
  const double got = column(run, "loss").at(0);
  const double want = golden.at("loss")[0];
  EXPECT_GT(std::abs(got - want), 1e-4 * want);
  const ParameterError error =
      parameter_error(run, start_of(GetParam().golden), "reward_changes", GetParam().golden);
  EXPECT_GT(error.relative, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Mutations, RewardRunDetects,
    testing::Values(
        RewardSplit{"margins_left_out", "margin", {"reward_model.use_margin=false"}},
        RewardSplit{"margins_added", "bradley_terry", {"reward_model.use_margin=true"}},
        RewardSplit{"another_center", "center", {"reward_model.center_rewards_coefficient=0.0505"}},
        // Read at the last token, which is the padding's id.
        RewardSplit{"last_token",
                    "end_is_padding",
                    {"roles.student.model=" + (goldens() / "reward_one").string(),
                     "reward_model.loss_type=bradley_terry"}}),
    [](const auto& info) { return info.param.name; });

// The same numbers as transformers' model gives, of models that it saved.
TEST(RewardScores, MatchTransformers) {
  const c10::NoGradGuard no_grad;
  const nlohmann::json cases = golden_cases("reward").at("scores");
  for (const auto& [folder, golden] : cases.items()) {
    const models::Decoder decoder = models::load_classifier(goldens() / folder, at::kFloat, {});
    const int64_t pad = decoder.config().classifier.pad_token_id;
    double moved = 0;
    for (size_t row = 0; row < golden.at("ids").size(); ++row) {
      const auto ids = golden.at("ids")[row].get<std::vector<int32_t>>();
      const auto wanted = golden.at("scores")[row].get<std::vector<double>>();
      const auto scores_at = [&](int64_t position) {
        return models::sequence_scores(
            decoder.head(), decoder.hidden(models::wanting(models::pack_rows({ids}),
                                                           at::full({1}, position, at::kLong))));
      };
      const int64_t position = models::score_position(ids, pad);
      ASSERT_EQ(scores_at(position).size(1), static_cast<int64_t>(wanted.size()));
      for (size_t label = 0; label < wanted.size(); ++label) {
        const auto at = static_cast<int64_t>(label);
        EXPECT_NEAR(scores_at(position)[0][at].item<double>(), wanted[label], 1e-5) << folder;
        moved = std::max(moved,
                         std::abs(scores_at(position - 1)[0][at].item<double>() - wanted[label]));
      }
    }
    EXPECT_GT(moved, 1e-2) << folder << ": the token before is not told apart";
  }
}

// From a language model on: what is saved has the keys and tensors of transformers' own.
TEST(RewardCheckpoint, IsAsTransformersSavesIt) {
  TemporaryFolder folder;
  const fs::path run =
      run_case(folder, "bradley_terry",
               {"roles.student.model=" + (goldens() / "qwen3").string(), "train.max_steps=1"});
  ASSERT_FALSE(HasFailure());
  const auto config_of = [](const fs::path& model) {
    return nlohmann::json::parse(read_file(model / "config.json"));
  };
  const nlohmann::json saved = config_of(run / "final");
  const nlohmann::json wanted = config_of(goldens() / "reward_one");
  for (const char* key : {"architectures", "id2label", "label2id", "pad_token_id", "eos_token_id",
                          "model_type", "vocab_size", "hidden_size"})
    EXPECT_EQ(saved.at(key), wanted.at(key)) << key;
  const models::SafetensorsReader tensors(run / "final");
  EXPECT_EQ(tensors.names(), models::SafetensorsReader(goldens() / "reward_one").names());
  EXPECT_EQ(tensors.shape("score.weight"), (std::vector<int64_t>{1, 16}));

  // It scores again as what it is, trains on, and is no language model.
  EXPECT_NO_THROW(models::load_classifier(run / "final", at::kFloat, {}));
  EXPECT_THROW(models::load_decoder(run / "final", at::kFloat), Error);
  EXPECT_THROW(models::load_classifier(goldens() / "qwen3", at::kFloat, {}), Error);
  EXPECT_THROW(models::load_classifier(run / "final", at::kFloat, {.num_labels = 2}), Error);
}

// Killed in the middle and resumed. The model names no padding but its checkpoints do, whose row of
// the embedding must go on getting its gradient: it stands in every prompt.
TEST(RewardRunResumes, BitForBit) {
  TemporaryFolder folder;
  const fs::path model = folder / "model";
  fs::copy(goldens() / "qwen3", model, fs::copy_options::recursive);
  nlohmann::json config = nlohmann::json::parse(read_file(model / "config.json"));
  config["pad_token_id"] = nullptr;
  std::ofstream(model / "config.json") << config.dump();
  std::string rows = read_file(goldens() / "reward_pairs.jsonl");
  const std::string prompt = "\"prompt\": \"";
  for (size_t at = rows.find(prompt); at != std::string::npos; at = rows.find(prompt, at + 1))
    rows.insert(at + prompt.size(), "<pad> ");
  std::ofstream(folder / "rows.jsonl") << rows;

  const auto launch = [&](const fs::path& place) {
    return std::vector<std::string>{"launch",
                                    write_case(place, "center"),
                                    "roles.student.model=" + model.string(),
                                    "roles.student.world.dp=2",
                                    "data.train.0.path=" + (folder / "rows.jsonl").string(),
                                    "train.per_device_train_batch_size=1",
                                    "train.max_steps=60",
                                    "train.save_steps=7"};
  };
  constexpr auto kDeadline = std::chrono::seconds(120);
  const auto whole = retort(launch(folder / "whole"), kDeadline);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;

  const auto [place, killed] =
      disturb(folder.path(), 60, {{.rows = 17, .role = "student"}}, launch);
  EXPECT_NE(killed.exit_code, 0);
  std::vector<std::string> resume = launch(place);
  resume.emplace_back("--resume");
  const auto result = retort(resume, kDeadline);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(timeless_metrics(place / "run"), timeless_metrics(folder / "whole/run"));
  EXPECT_TRUE(read_file(place / "run/final/model.safetensors") ==
              read_file(folder / "whole/run/final/model.safetensors"));
}

struct BadReward {
  std::string name, row, message;
  std::vector<std::string> settings;
};
class RewardRunRefuses : public testing::TestWithParam<BadReward> {};

TEST_P(RewardRunRefuses, ABadRow) {
  TemporaryFolder folder;
  std::ofstream(folder / "bad.jsonl")
      << R"({"prompt": "w1", "chosen": "w2", "rejected": "w3")" << GetParam().row << "}\n";
  std::vector<std::string> args{"launch", write_case(folder.path(), "bradley_terry"),
                                "data.train.0.path=" + (folder / "bad.jsonl").string(),
                                "data.eval=[]"};
  args.insert(args.end(), GetParam().settings.begin(), GetParam().settings.end());
  const CommandResult result = retort(args);
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_NE(result.output.find(GetParam().message), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("bad.jsonl:1"), std::string::npos) << result.output;
}

const std::vector<std::string> kMargin{"reward_model.use_margin=true"};
const std::vector<std::string> kTwoLabels{"reward_model.num_labels=2",
                                          "roles.student.model=" + (goldens() / "qwen3").string()};

INSTANTIATE_TEST_SUITE_P(
    Rows, RewardRunRefuses,
    testing::Values(BadReward{"no_margin", "", "'margin' is missing", kMargin},
                    BadReward{"a_word_for_a_margin", R"(, "margin": "much")",
                              "'margin' is 'much'; expected a finite number", kMargin},
                    BadReward{"no_objective", "", "'objective' is missing", kTwoLabels},
                    BadReward{"an_objective_too_large", R"(, "objective": 2)",
                              "'objective' is '2'; expected the number of one of the 2 labels",
                              kTwoLabels},
                    BadReward{"an_objective_of_one_label",
                              R"(, "objective": 1)",
                              "'objective' is '1'; expected the number of one of the 1 labels",
                              {}}),
    [](const auto& info) { return info.param.name; });

TEST(RewardCommands, CheckAuditAndPlan) {
  TemporaryFolder folder;
  const std::string recipe = write_case(folder.path(), "margin");
  const auto said = [&](std::vector<std::string> args, const std::string& wanted) {
    args.insert(args.begin() + 1, recipe);
    const CommandResult result = retort(args);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find(wanted), std::string::npos) << result.output;
  };
  said({"check"}, "all checks passed");
  said({"check", "roles.student.model=" + (goldens() / "qwen3").string()}, "all checks passed");
  said({"audit"}, "--- all: 20 pairs");
  // 16 weights more than the model without its head: the embedding's 1024 are none.
  said({"plan", "--json"},
       "\"parameters\": " +
           std::to_string(models::read_model_config(goldens() / "qwen3").num_parameters() + 16));
}

}  // namespace
}  // namespace retort::test
