// Rewards that models of ours give in whole grpo runs: a reward model's scores and a judge's words,
// against the same models in this process; roles that are lost in the middle change nothing, nor
// does a student that is killed and resumed.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <regex>
#include <set>

#include "base/file.h"
#include "models/checkpoint/checkpoint.h"
#include "models/decoder/sequence_scores.h"
#include "models/generation/generate.h"
#include "models/loaded_model.h"
#include "models/ops/packed.h"
#include "tests/recipes/run_support/disturbed_run.h"
#include "tests/recipes/run_support/killed_run.h"

namespace retort::test {
namespace {

constexpr auto kDeadline = std::chrono::seconds(120);
constexpr const char* kModelReward = "[{type: model, role: judge, label: 1, name: taste}]";

// Who scores, and how he is asked.
struct Scoring {
  std::string name;
  std::string rewards;
  std::string model;  // of the role `judge`
  std::string world = "{threads: 1}";
};

Scoring by_model() {
  return {.name = "model", .rewards = kModelReward, .model = (goldens() / "reward_two").string()};
}

// A judge numbers its words otherwise than the student: w7 is another one's name.
Scoring by_judge(const TemporaryFolder& folder) {
  const fs::path model = folder / "judge";
  if (!fs::exists(model)) {
    fs::copy(goldens() / "llama", model, fs::copy_options::recursive);
    std::string tokenizer = read_file(model / "tokenizer.json");
    const size_t seven = tokenizer.find("\"w7\"");
    EXPECT_NE(seven, std::string::npos);
    tokenizer.replace(seven, 4, "\"v7\"");
    std::ofstream(model / "tokenizer.json") << tokenizer;
    std::ofstream(folder / "question.jinja") << "w5 {{ prompt }} w6 {{ completion }}";
  }
  return {
      .name = "judge",
      .rewards = "[{type: judge, role: judge, template: " + (folder / "question.jinja").string() +
                 ", pattern: 'w(\\d+) ', scale: 0.01, max_new_tokens: 6, name: taste}, "
                 "{type: length, min: 10, max: 64, weight: 0.5}]",
      .model = model.string()};
}

std::vector<std::string> launch(const TemporaryFolder& data, const fs::path& folder,
                                const Scoring& scoring, int64_t steps) {
  OnPolicyRecipe recipe{.steps = steps};
  recipe.data = write_prompts(data);
  recipe.rewards = scoring.rewards;
  recipe.generation["save_samples"] = "true";
  return {"launch", write_on_policy(folder, recipe).string(),
          "roles.judge={model: " + scoring.model + ", world: " + scoring.world + "}"};
}

double taste_of(const nlohmann::json& sample) { return sample.at("rewards").at("taste"); }

// By the reward model in this process, on its own.
double own_score(const models::Decoder& decoder, const nlohmann::json& sample, int64_t label = 1) {
  const c10::NoGradGuard no_grad;
  auto ids = sample.at("prompt_ids").get<std::vector<int32_t>>();
  const auto completion = sample.at("token_ids").get<std::vector<int32_t>>();
  ids.insert(ids.end(), completion.begin(), completion.end());
  const int64_t last = models::score_position(ids, decoder.config().classifier.pad_token_id);
  return models::sequence_scores(decoder.head(), decoder.hidden(models::wanting(
                                                     models::pack_rows({ids}),
                                                     at::full({1}, last, at::kLong))))[0][label]
      .item<double>();
}

// Ids that only the student knows would be scored by rows that stand for nothing.
TEST(ModelRewardRefuses, AStudentWithMoreTokens) {
  TemporaryFolder folder;
  const fs::path student = folder / "student";
  const CommandResult added = retort({"vocab", "add", (goldens() / "qwen3").string(), "--tokens",
                                      "<|a|>", "--output", student.string()});
  ASSERT_EQ(added.exit_code, 0) << added.output;
  auto args = launch(folder, folder / "one", by_model(), 1);
  args.push_back("roles.student.model=" + student.string());
  args.push_back("roles.generator.model=" + student.string());
  const CommandResult result = retort(args, kDeadline);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.output.find("role 'judge': the tokenizer of"), std::string::npos)
      << result.output;
}

TEST(ModelRewardRefuses, ToBeAnotherRolesModel) {
  TemporaryFolder folder;
  auto args = launch(folder, folder / "one", by_model(), 1);
  args.push_back("roles.student.model=" + (goldens() / "reward_two").string());
  const CommandResult result = retort(args, kDeadline);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.output.find("role 'student'"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("holds a sequence classifier"), std::string::npos) << result.output;
}

class ModelReward : public testing::TestWithParam<std::string> {};

TEST_P(ModelReward, IsTheModelsScore) {
  TemporaryFolder folder;
  Scoring scoring = by_model();
  scoring.world = GetParam();
  auto args = launch(folder, folder / "one", scoring, 4);
  args.push_back("roles.student.world.dp=2");
  args.push_back("train.gradient_accumulation_steps=1");
  args.push_back("train.per_device_train_batch_size=4");
  const CommandResult result = retort(args, kDeadline);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const models::Decoder decoder = models::load_classifier(goldens() / "reward_two", at::kFloat, {});
  const auto samples = read_samples(folder / "one/run");
  ASSERT_EQ(samples.size(), 32u);
  double least = 1e9;
  double most = -1e9;
  double mistaken = 0;
  for (const auto& [key, sample] : samples) {
    EXPECT_NEAR(taste_of(sample), own_score(decoder, sample), 1e-5) << sample.at("completion");
    EXPECT_EQ(sample.at("reward").get<double>(), taste_of(sample));
    mistaken = std::max(mistaken, std::abs(taste_of(sample) - own_score(decoder, sample, 0)));
    least = std::min(least, taste_of(sample));
    most = std::max(most, taste_of(sample));
  }
  EXPECT_GT(most - least, 0.1) << "or all of them would do";
  EXPECT_GT(mistaken, 0.1) << "or another label would do";
}

INSTANTIATE_TEST_SUITE_P(Worlds, ModelReward,
                         testing::Values("{threads: 1}", "{threads: 1, dp: 2}",
                                         "{threads: 1, tp: 2}"),
                         [](const auto& info) { return "world_" + std::to_string(info.index); });

// ChatML's kind: something stands behind the end token (<eos>, 63): here w61, there a line break.
constexpr const char* kGoesOn =
    "{% for m in messages %}w60 {{ m.content }} <eos> w61 {% endfor %}"
    "{% if add_generation_prompt %}w60 {% endif %}";
constexpr int32_t kBehindEnd = 61;

std::string message(const std::string& role, int64_t from, int64_t step) {
  const std::string words = "w" + std::to_string(from) + " w" + std::to_string(from + step);
  return R"([{"role": ")" + role + R"(", "content": ")" + words + R"("}])";
}

// A reward model that likes answers of small numbers, trained on conversations.
fs::path train_on_messages(const TemporaryFolder& folder, const fs::path& model) {
  std::ofstream rows(folder / "pairs.jsonl");
  for (int64_t i = 0; i < 24; ++i)
    rows << R"({"prompt": )" << message("user", 10 + i, 3) << R"(, "chosen": )"
         << message("assistant", i % 5, 1 + i % 3) << R"(, "rejected": )"
         << message("assistant", 40 + i % 7, 2 + i % 4) << "}\n";
  rows.close();
  std::ofstream(folder / "reward.yaml")
      << "recipe: reward_model\noutput_dir: " << (folder / "reward").string()
      << "\nroles: {student: {model: " << model.string() << ", world: {threads: 1}}}\n"
      << "data: {train: [{path: " << (folder / "pairs.jsonl").string() << "}], max_length: 64}\n"
      << "train: {max_steps: 60, per_device_train_batch_size: 8, learning_rate: 1.0e-2}\n"
      << "reward_model: {num_labels: 1}\n";
  const auto result = retort({"launch", (folder / "reward.yaml").string()}, kDeadline);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(column(folder / "reward", "accuracy").back(), 1.0);
  return folder / "reward/final";
}

// A reward model of conversations, met by completions that end where they were drawn: it is asked
// at the token where it learned.
TEST(ChatReward, IsReadWhereItWasTrained) {
  TemporaryFolder folder;
  const fs::path chat = folder / "chat";
  fs::copy(goldens() / "qwen3", chat, fs::copy_options::recursive);
  std::ofstream(chat / "chat_template.jinja") << kGoesOn;
  const fs::path judge = train_on_messages(folder, chat);

  // The pairs of its training, as a generator would end them: as many are told apart.
  const models::Decoder decoder = models::load_classifier(judge, at::kFloat, {});
  const auto score = [&](std::vector<int32_t> completion) {
    completion.push_back(63);
    completion.push_back(kBehindEnd);
    return own_score(decoder, {{"prompt_ids", {60, 10, 13, 63, 61, 60}}, {"token_ids", completion}},
                     0);
  };
  for (int32_t i = 0; i < 5; ++i)
    EXPECT_GT(score({i, i + 1}), score({40 + i, 42 + i}));

  // And in a run.
  std::ofstream prompts(folder / "prompts.jsonl");
  for (int64_t i = 0; i < 10; ++i)
    prompts << R"({"prompt": )" << message("user", 10 + i, 3) << R"(, "answer": "w1"})"
            << "\n";
  prompts.close();
  OnPolicyRecipe recipe{.steps = 8};
  recipe.data = folder / "prompts.jsonl";
  recipe.student_model = recipe.generator_model = chat.string();
  recipe.rewards = "[{type: model, role: judge, label: 0, name: taste}]";
  recipe.generation["save_samples"] = "true";
  recipe.generation["max_new_tokens"] = "24";
  const auto result = retort({"launch", write_on_policy(folder / "one", recipe).string(),
                              "roles.judge={model: " + judge.string() + ", world: {threads: 1}}"},
                             kDeadline);
  ASSERT_EQ(result.exit_code, 0) << result.output;

  int ended = 0;
  double mistaken = 0;
  for (const auto& [key, sample] : read_samples(folder / "one/run")) {
    nlohmann::json read = sample;
    const bool ends = sample.at("token_ids").back() == 63;
    if (ends) read.at("token_ids").push_back(kBehindEnd);
    EXPECT_NEAR(taste_of(sample), own_score(decoder, read, 0), 1e-4) << sample.at("completion");
    ended += ends;
    if (ends)
      mistaken = std::max(mistaken, std::abs(taste_of(sample) - own_score(decoder, sample, 0)));
  }
  EXPECT_GT(ended, 0);
  EXPECT_GT(mistaken, 0.1) << "or the end token would do";
}

// What the model says by itself to the question of a sample; nullopt: no number.
std::optional<double> own_judgement(const models::LoadedModel& judge,
                                    const nlohmann::json& sample) {
  const std::string question = "w5 " + sample.at("prompt").get<std::string>() + " w6 " +
                               sample.at("completion").get<std::string>();
  models::GenerateOptions options;
  options.draw.sampling.temperature = 0;
  options.draw.max_new_tokens = 6;
  options.draw.eos_token_ids = judge.eos_token_ids;
  const auto drawn =
      models::generate(judge.decoder, {judge.tokenizer.encode(question, true)}, options);
  const std::string said = judge.tokenizer.decode(drawn.at(0).token_ids, true);
  static const std::regex number("w(\\d+) ");
  std::optional<double> found;
  for (auto match = std::sregex_iterator(said.begin(), said.end(), number);
       match != std::sregex_iterator(); ++match)
    found = std::stod((*match)[1].str()) * 0.01;
  return found;
}

TEST(OwnJudge, SaysWhatTheModelGenerates) {
  TemporaryFolder folder;
  const Scoring scoring = by_judge(folder);
  const CommandResult result = retort(launch(folder, folder / "one", scoring, 4), kDeadline);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const models::LoadedModel judge = models::load_model(scoring.model, "float32");
  std::set<double> seen;
  for (const auto& [key, sample] : read_samples(folder / "one/run")) {
    const auto wanted = own_judgement(judge, sample);
    const nlohmann::json& got = sample.at("rewards").at("taste");
    ASSERT_EQ(got.is_null(), !wanted.has_value()) << sample.at("completion");
    if (!wanted) continue;
    EXPECT_DOUBLE_EQ(got.get<double>(), *wanted) << sample.at("completion");
    seen.insert(*wanted);
  }
  EXPECT_GE(seen.size(), 4u) << "or any answer would do";
}

class ScoringRoleLost : public testing::TestWithParam<std::string> {};

TEST_P(ScoringRoleLost, ChangesNothing) {
  TemporaryFolder folder;
  const Scoring scoring = GetParam() == "judge" ? by_judge(folder) : by_model();
  const auto in = [&](const fs::path& place) { return launch(folder, place, scoring, 40); };
  const auto whole = retort(in(folder / "whole"), kDeadline);
  ASSERT_EQ(whole.exit_code, 0) << whole.output;

  const auto [place, result] =
      disturb(folder.path(), 40, {{.rows = 3, .role = "judge"}, {.rows = 15, .role = "judge"}}, in);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("was started again (2 of 3 times)"), std::string::npos)
      << result.output;
  EXPECT_EQ(timeless_metrics(place / "run"), timeless_metrics(folder / "whole/run"));
  EXPECT_TRUE(read_file(place / "run/final/model.safetensors") ==
              read_file(folder / "whole/run/final/model.safetensors"));
  EXPECT_TRUE(all_gone(place.string()));
}

INSTANTIATE_TEST_SUITE_P(Roles, ScoringRoleLost, testing::Values("model", "judge"),
                         [](const auto& info) { return info.param; });

class ScoredRunKilled : public testing::TestWithParam<std::string> {};

// Samples that are drawn again are scored again, for students of two ranks by one process.
TEST_P(ScoredRunKilled, ResumesBitForBit) {
  constexpr int64_t kSteps = 20;
  const LaunchIn scored = [](const TemporaryFolder& data, const fs::path& folder) {
    const Scoring scoring = GetParam() == "judge" ? by_judge(data) : by_model();
    std::vector<std::string> arguments = launch(data, folder, scoring, kSteps);
    for (const char* setting :
         {"roles.student.world.dp=2", "train.per_device_train_batch_size=4", "train.save_steps=3"})
      arguments.push_back(setting);
    return arguments;
  };
  expect_same_after_kills({.name = GetParam(), .steps = kSteps, .launch = scored, .rank = 1});
}

INSTANTIATE_TEST_SUITE_P(Roles, ScoredRunKilled, testing::Values("model", "judge"),
                         [](const auto& info) { return info.param; });

TEST(ModelRewardCommands, PlanCheckAndRefuse) {
  TemporaryFolder folder;
  const auto said = [&](const char* command, const std::string& model, int code,
                        const std::string& wanted) {
    Scoring scoring = by_model();
    scoring.model = model;
    std::vector<std::string> args = launch(folder, folder / "plan", scoring, 4);
    args[0] = command;
    const CommandResult result = retort(args);
    EXPECT_EQ(result.exit_code, code) << result.output;
    EXPECT_NE(result.output.find(wanted), std::string::npos) << result.output;
  };
  said("plan", by_model().model, 0, "reward_two");
  said("check", by_model().model, 0, "reward taste");
  said("launch", (goldens() / "reward_one").string(), 2, "has 1 labels, counted from 0");

  // What is drawn may be longer than what it knows; told before anything starts.
  const fs::path brief = folder / "brief";
  fs::copy(goldens() / "reward_two", brief, fs::copy_options::recursive);
  auto config = nlohmann::json::parse(read_file(brief / "config.json"));
  config["max_position_embeddings"] = 63;
  std::ofstream(brief / "config.json") << config.dump();
  said("plan", brief.string(), 2, "scores at most 63 tokens");

  // Ids are scored as they were drawn.
  const fs::path other = folder / "other";
  fs::copy(goldens() / "reward_two", other, fs::copy_options::recursive);
  std::string tokenizer = read_file(other / "tokenizer.json");
  tokenizer.replace(tokenizer.find("\"w7\""), 4, "\"v7\"");
  std::ofstream(other / "tokenizer.json") << tokenizer;
  said("launch", other.string(), 2, "differs from the student's");
}

TEST(JudgeRewardCommands, CheckAsksTheModel) {
  TemporaryFolder folder;
  std::vector<std::string> args = launch(folder, folder / "plan", by_judge(folder), 4);
  args[0] = "check";
  const CommandResult result = retort(args);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("reward taste"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("all checks passed"), std::string::npos) << result.output;
}

}  // namespace
}  // namespace retort::test
