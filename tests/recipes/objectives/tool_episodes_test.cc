// One step of grpo on episodes with tools beside the same step of TRL 1.16's GRPOTrainer: the turns
// are those of a script, the environment is one class of Python, all else is ours here and TRL's
// there (make_tool_goldens.py).
//
//   ScriptedEngine - EpisodeBackend - Generator  <- RPC ->  RolloutWorker - RolloutScorer
//                         |                                                      |
//                    retort_env.py tool_cases.py:Counter            GrpoObjective - Trainer
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"
#include "environments/make_environment.h"
#include "models/checkpoint/checkpoint.h"
#include "models/safetensors/safetensors.h"
#include "models/text/chat_template.h"
#include "models/text/end_tokens.h"
#include "recipes/grpo/objective.h"
#include "recipes/rollout/rollout_worker.h"
#include "recipes/run/loop/optimizer_step.h"
#include "roles/episodes/episode_backend.h"
#include "tests/recipes/rollout/scripted_engine.h"
#include "tests/roles/generator_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr double kRelative = 1e-5;

fs::path goldens() { return test::source_folder() / "tests/recipes/goldens"; }
std::string model_folder() { return roles::golden_model("qwen3_tools"); }
const Json& golden() {
  static const Json all = Json::parse(read_file(goldens() / "tools.json"));
  return all;
}
int64_t setting(const char* name) { return golden().at("settings").at(name).get<int64_t>(); }
int64_t prompts() { return static_cast<int64_t>(golden().at("prompts").at("ids").size()); }

// What ours makes of a completion: what TRL made, and the fields that differ by design.
Json expected_of(const Json& completion) {
  Json expected = completion;
  if (completion.contains("ours")) expected.update(completion.at("ours"));
  return expected;
}

std::unique_ptr<roles::SampleBackend> backend_of(const std::string& script) {
  std::vector<test::ScriptedTurns> turns;
  for (const auto& [name, completion] : golden().at(script).items())
    turns.push_back(completion.at("turns").get<test::ScriptedTurns>());

  // -S: without transformers, whose get_json_schema would be taken where it is installed.
  environments::EnvironmentOptions options;
  options.command = {"python3", "-B", "-S", "-E",
                     (test::source_folder() / "python/retort_env.py").string(),
                     (test::source_folder() / "tests/recipes/tool_cases.py").string() + ":Counter"};
  roles::EpisodeOptions episodes;
  episodes.max_turns = setting("max_turns");
  episodes.max_tokens = setting("max_tokens");
  return std::make_unique<roles::EpisodeBackend>(
      std::make_unique<test::ScriptedEngine>(model_folder(), std::move(turns)),
      environments::make_environment("tools/0", options, episodes.timeout),
      models::ChatTemplate::load(model_folder()), models::Tokenizer::load(model_folder()),
      episodes);
}

// One after the other in the order of their names, as the golden has them.
at::Tensor end_to_end(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const auto& [name, tensor] : tensors)
    parts.push_back(tensor.detach().to(at::kDouble).flatten());
  return at::cat(parts);
}
std::map<std::string, at::Tensor> parameters_of(const models::Decoder& decoder) {
  std::map<std::string, at::Tensor> all;
  for (const auto& parameter : decoder.parameters())
    all[parameter.name] = parameter.value.detach().clone();
  return all;
}
std::map<std::string, at::Tensor> gradient_of(roles::Trainer& trainer, double divisor) {
  std::map<std::string, at::Tensor> all;
  const parallel::GradBuckets& buckets = trainer.buckets();
  for (size_t i = 0; i < buckets.size(); ++i)
    all[buckets.parameter(i).name] = buckets.main_grad(i) / divisor;
  return all;
}

double metric(const MetricsRow& row, const std::string& name) {
  for (const auto& [key, value] : row.values)
    if (key == name)
      return std::visit([](auto number) { return static_cast<double>(number); }, value);
  ADD_FAILURE() << "no metric " << name;
  return std::numeric_limits<double>::quiet_NaN();
}

// As if all that an environment says were the model's.
class Unmasked final : public SampleSource {
 public:
  explicit Unmasked(std::shared_ptr<SampleSource> source) : source_(std::move(source)) {}

  PendingRollout begin(RolloutRequest request) override {
    return source_->begin(std::move(request));
  }
  Rollout finish(PendingRollout pending) override {
    Rollout rollout = source_->finish(std::move(pending));
    for (RolloutGroup& group : rollout.groups)
      for (RolloutSample& sample : group.samples)
        for (models::Span& span : sample.completion.spans)
          span.source = models::SpanSource::kModel;
    return rollout;
  }
  void sync(const models::Decoder& student, uint64_t version,
            const std::vector<PendingRollout*>& in_flight) override {
    source_->sync(student, version, in_flight);
  }
  uint64_t pushed_version() const override { return source_->pushed_version(); }
  double last_push_seconds() const override { return source_->last_push_seconds(); }

 private:
  std::shared_ptr<SampleSource> source_;
};

// What a step came to. Gradient and parameters are those of all parameters as one vector, the
// gradient before clipping.
struct Step {
  std::vector<Json> samples;  // as a run saves them
  double loss = 0, grad_norm = 0, trained_tokens = 0;
  MetricsRow row;
  at::Tensor gradient, before, after;
};

// The student's side, in the thread that makes it.
class Student {
 public:
  Student(rpc::Agent& agent, const std::string& name, bool masks, const fs::path& folder)
      : folder_(folder),
        trainer_(models::load_decoder(model_folder(), at::kFloat), world_,
                 {.schedule = {.type = parallel::LrSchedulerType::kConstant,
                               .learning_rate =
                                   golden().at("settings").at("learning_rate").get<double>()}}) {
    std::shared_ptr<SampleSource> samples = make_samples(agent);
    if (!masks) samples = std::make_shared<Unmasked>(std::move(samples));
    objective_ = make_objective(std::move(samples), options_of(name));
  }

  Step step() {
    Step step;
    step.before = end_to_end(parameters_of(trainer_.decoder()));
    const StepInfo info = objective_->next_step(1);
    const StepSums sums = compute_gradients(trainer_, world_, info.micro_batches, *objective_,
                                            /*may_skip=*/false);
    const double divisor = objective_->divisor(sums);
    step.loss = sums.loss / divisor;
    step.trained_tokens = sums.count;
    step.gradient = end_to_end(gradient_of(trainer_, divisor));
    step.grad_norm = trainer_.finish_step(divisor).grad_norm;
    objective_->finish_step(sums, step.row);
    step.after = end_to_end(parameters_of(trainer_.decoder()));

    std::istringstream lines(read_file(folder_ / "samples/step-1-rank-0.jsonl"));
    for (std::string line; std::getline(lines, line);)
      step.samples.push_back(Json::parse(line));
    return step;
  }

 private:
  static GrpoOptions options_of(const std::string& name) {
    GrpoOptions grpo;
    for (const auto& [key, value] : golden().at(name).at("options").items()) {
      if (key == "loss_type")
        grpo.loss_type = parse_enum<losses::PolicyLossType>(value.get<std::string>());
      else if (key == "mask_truncated_completions")
        grpo.mask_truncated_completions = value.get<bool>();
      else
        ADD_FAILURE() << "an option that is not set: " << key;
    }
    return grpo;
  }

  std::shared_ptr<SampleSource> make_samples(rpc::Agent& agent) {
    GenerationOptions generation;
    generation.num_generations = setting("generations");
    generation.max_new_tokens = setting("max_tokens");
    const models::Decoder& decoder = trainer_.decoder();
    auto client = std::make_unique<roles::GeneratorClient>(
        agent,
        roles::GeneratorClient::Options{.role = "generator",
                                        .peers = {"generator/0"},
                                        .timeout = std::chrono::seconds(100),
                                        .generation_timeout = std::chrono::seconds(200)},
        tokenizer_, decoder);
    return std::make_shared<RolloutWorker>(
        world_, std::move(client), tokenizer_,
        RolloutWorker::Options{.generation = generation,
                               .sync = {},
                               .eos_token_ids = models::end_token_ids(decoder.config(), tokenizer_),
                               .stops = {},
                               .episodes = true});
  }

  // Micro-batches of six: the second group is in both.
  std::unique_ptr<GrpoObjective> make_objective(std::shared_ptr<SampleSource> samples,
                                                const GrpoOptions& grpo) {
    const auto rows = std::make_shared<data::PromptDataset>(
        std::vector<data::Source>{{.path = (goldens() / "tool_rows.jsonl").string()}},
        data::DataOptions{}, tokenizer_, models::ChatTemplate::load(model_folder()),
        folder_ / "cache", setting("max_tokens"), /*for_episodes=*/true);
    const std::vector<rewards::RewardOptions> rewards{
        {.type = rewards::RewardType::kEnvironment, .weight = 1.0}};
    return std::make_unique<GrpoObjective>(
        GrpoObjective::Parts{.world = world_,
                             .trainer = trainer_,
                             .prompts = rows,
                             .stream = std::make_unique<data::IndexStream>(
                                 rows, data::IndexOptions{.shuffle = false}),
                             .samples = std::move(samples),
                             .scorer = std::make_shared<RolloutScorer>(
                                 std::make_shared<rewards::RewardSet>(rewards), tokenizer_)},
        GrpoObjective::Options{.grpo = grpo,
                               .reward_weights = {1.0},
                               .num_generations = setting("generations"),
                               .max_new_tokens = setting("max_tokens"),
                               .episodes = true,
                               .num_ids = tokenizer_.vocab_size(),
                               .prompts_per_round = prompts(),
                               .micro_batches = 2,
                               .rows_per_micro_batch = prompts() * setting("generations") / 2,
                               .max_steps = 1,
                               .start_cursor = {},
                               .samples_folder = folder_ / "samples"});
  }

  const fs::path folder_;
  const models::Tokenizer tokenizer_ = models::Tokenizer::load(model_folder());
  parallel::World world_{{.role = "student", .layout = {}}};
  roles::Trainer trainer_;
  std::unique_ptr<GrpoObjective> objective_;
};

class ToolEpisodes : public roles::GeneratorServed {
 protected:
  explicit ToolEpisodes(const std::string& script) : GeneratorServed(backend_of(script)) {}

  // `masks`: false: with Unmasked.
  Step step(const std::string& name, bool masks = true) {
    return beside([&] { return Student(client, name, masks, folder_.path()).step(); });
  }

 private:
  test::TemporaryFolder folder_;
};

// ---- what is compared
std::string mask_of(const Json& sample) {
  std::string mask;
  for (const Json& span : sample.at("spans"))
    mask.append(span.at(1).get<size_t>(), span.at(0) == "model" ? '1' : '0');
  return mask;
}

// All that can be told of a completion without the loss, with the golden's names; its advantage is
// that of its group.
Json completion_of(const Json& sample) {
  const std::string mask = mask_of(sample);
  return {{"ids", sample.at("token_ids")},
          {"mask", mask},
          {"length", std::count(mask.begin(), mask.end(), '1')},
          {"reward", sample.at("reward")},
          {"truncated", sample.at("finish_reason") == "length"}};
}

// The fields of a completion in which it is not as `want` has it.
std::set<std::string> differences(const Json& got, const Json& want) {
  std::set<std::string> fields;
  for (const auto& [field, value] : got.items())
    if (value != want.at(field)) fields.insert(field);
  return fields;
}

void expect_completions(const std::vector<Json>& samples, const std::string& script) {
  const Json& completions = golden().at(script);
  ASSERT_EQ(samples.size(), completions.size());
  size_t i = 0;
  for (const auto& [name, completion] : completions.items()) {
    SCOPED_TRACE(script + " " + name);
    const Json& sample = samples[i];
    const size_t prompt = i++ / static_cast<size_t>(setting("generations"));
    EXPECT_EQ(sample.at("prompt_ids"), golden().at("prompts").at("ids").at(prompt));

    const Json got = completion_of(sample);
    const Json want = expected_of(completion);
    for (const auto& [field, value] : got.items())
      EXPECT_EQ(value, want.at(field)) << field;

    // What is not as TRL has it has a reason, and a golden in which it does not show has none.
    std::set<std::string> named;
    if (completion.contains("ours")) {
      EXPECT_FALSE(completion.at("why").get<std::string>().empty());
      for (const auto& [field, value] : completion.at("ours").items())
        if (got.contains(field)) named.insert(field);
    }
    EXPECT_EQ(differences(got, completion), named);
  }
}

void expect_advantages(const std::vector<Json>& samples, const std::string& script) {
  std::vector<double> rewards;
  std::vector<double> want;
  for (const Json& sample : samples)
    rewards.push_back(sample.at("reward").get<double>());
  for (const auto& [name, completion] : golden().at(script).items())
    want.push_back(expected_of(completion).at("advantage").get<double>());
  GrpoRewards all;
  all.totals = at::tensor(rewards, at::kDouble);
  const at::Tensor got = grpo_advantages(all, setting("generations"), {}).advantages;
  ASSERT_EQ(got.numel(), static_cast<int64_t>(want.size()));
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[static_cast<int64_t>(i)].item<double>(), want[i], 1e-6) << i;
}

// By the norms of the golden's vectors: of the gradient, and of the parameters after the step.
struct StepError {
  double gradient = 0, parameters = 0;
};
StepError step_error(const Step& step, const std::string& name) {
  const auto read = [&](const char* file) {
    return models::SafetensorsReader(goldens() / file).get(name).to(at::kDouble);
  };
  const auto relative = [](const at::Tensor& got, const at::Tensor& want) {
    return ((got - want).norm() / want.norm()).item<double>();
  };
  const at::Tensor after = step.before + read("tools_changes.safetensors");
  return {.gradient = relative(step.gradient, read("tools_gradients.safetensors")),
          .parameters = relative(step.after, after)};
}

class ToolStep : public ToolEpisodes, public testing::WithParamInterface<std::string> {
 protected:
  ToolStep() : ToolEpisodes(golden().at(GetParam()).at("script").get<std::string>()) {}

  const Json& case_ = golden().at(GetParam());
  const std::string script_ = case_.at("script");
};

TEST_P(ToolStep, IsTrls) {
  const Step made = step(GetParam());
  expect_completions(made.samples, script_);
  expect_advantages(made.samples, script_);
  ASSERT_FALSE(HasFailure()) << "other completions: the rest cannot agree";

  const Json want = expected_of(case_);
  EXPECT_EQ(made.trained_tokens, want.at("trained_tokens").get<double>());
  const auto expect_number = [&](const std::string& key, double got) {
    const auto value = want.at(key).get<double>();
    EXPECT_NEAR(got, value, std::max(kRelative * std::abs(value), 1e-6)) << key;
  };
  expect_number("loss", made.loss);
  expect_number("grad_norm", made.grad_norm);
  for (const char* key : {"reward", "frac_reward_zero_std", "completions/mean_length",
                          "completions/clipped_ratio", "tools/call_frequency",
                          "tools/failure_frequency", "entropy"})
    expect_number(key, metric(made.row, key));

  const StepError error = step_error(made, GetParam());
  EXPECT_LE(error.gradient, kRelative);
  EXPECT_LE(error.parameters, kRelative);
  EXPECT_GT((made.after - made.before).norm().item<double>(), 0.01) << "or nothing is compared";
  RecordProperty("gradient_error", std::to_string(error.gradient));
  RecordProperty("parameter_error", std::to_string(error.parameters));
}

// The comparison can fail: with a loss on what the environment says, completions, loss, gradient
// and parameters are far from the golden's.
TEST_P(ToolStep, IsAnotherWithoutTheMask) {
  const Step made = step(GetParam(), /*masks=*/false);
  const Json want = expected_of(case_);
  size_t i = 0, others = 0;
  for (const auto& [name, completion] : golden().at(script_).items()) {
    const std::set<std::string> fields =
        differences(completion_of(made.samples.at(i++)), expected_of(completion));
    others += fields.contains("mask");
  }
  EXPECT_GE(others, 3u);
  EXPECT_GT(made.trained_tokens, want.at("trained_tokens").get<double>());
  const StepError error = step_error(made, GetParam());
  EXPECT_GT(error.gradient, 1e3 * kRelative);
  EXPECT_GT(error.parameters, 10 * kRelative);
}

INSTANTIATE_TEST_SUITE_P(Cases, ToolStep, testing::Values("dapo", "grpo", "masked"),
                         [](const auto& info) { return info.param; });

// TRL leaves out of the group's mean what has no reward, and goes on.
class ToolEpisodesWithoutReward : public ToolEpisodes {
 protected:
  ToolEpisodesWithoutReward() : ToolEpisodes("no_reward") {}
};

TEST_F(ToolEpisodesWithoutReward, AreAnErrorThatNamesTheRow) {
  EXPECT_TRUE(golden().at("no_reward").at("2/no_reward").at("reward").is_null());
  const Error error = test::error_of([&] { step("dapo"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  const std::string message = error.what();
  EXPECT_NE(message.find("tool_rows.jsonl:3"), std::string::npos) << message;
  EXPECT_NE(message.find("has no reward; expected"), std::string::npos) << message;
}

}  // namespace
}  // namespace retort::recipes
