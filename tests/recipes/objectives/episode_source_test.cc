// On-policy distillation on episodes in one process: which tokens are learned, what teachers are
// asked, and what is left of a step that loses episodes.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "models/generation/completion_spans.h"
#include "recipes/distill/episode_source.h"
#include "recipes/distill/objective.h"
#include "recipes/distill/on_policy.h"
#include "rpc/agent.h"
#include "tests/recipes/loop/rank_threads.h"
#include "tests/recipes/objectives/fake_frozen_role.h"
#include "tests/recipes/rollout/fake_sample_source.h"
#include "tests/recipes/rollout/played_episodes.h"
#include "tests/recipes/rollout/prompt_files.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using test::FakeFrozenRole, test::nano_llama;
using Ids = std::vector<int32_t>;

models::Completion played(const data::PromptSample& prompt, uint64_t sample_id, uint64_t) {
  const std::string reward = std::to_string(sample_id % 2);
  return test::as_episode(prompt.prompt_ids, test::numbered_answer(sample_id),
                          test::played_record(reward, R"({"solved": 1})"));
}

std::map<std::string, double> numbers_of(const MetricsRow& row) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : row.values)
    numbers[name] = std::visit([](auto number) { return static_cast<double>(number); }, value);
  return numbers;
}

std::vector<size_t> sizes_of(const data::BatchStream::Step& step) {
  std::vector<size_t> sizes;
  for (const data::MicroBatch& batch : step.micro_batches)
    sizes.push_back(batch.samples.size());
  return sizes;
}

class EpisodeSourceTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kPrompts = 5;

  struct Process {
    std::shared_ptr<test::FakeSampleSource> samples;
    std::shared_ptr<EpisodeSource> source;

    std::map<std::string, double> metrics() const {
      MetricsRow row;
      source->add_metrics(row);
      return numbers_of(row);
    }
  };
  // Two micro-batches of two episodes a rank.
  Process start(parallel::World& world, test::FakeSampleSource::Answer answer,
                const data::Cursor& from = {}) const {
    Process process;
    process.samples =
        std::make_shared<test::FakeSampleSource>(files_.tokenizer(), std::move(answer));
    process.source = std::make_shared<EpisodeSource>(
        world, trainer_, files_.prompts(), files_.order(from), process.samples,
        EpisodeSource::Options{
            .rows_per_micro_batch = 2, .micro_batches = 2, .samples_folder = {}});
    return process;
  }
  Process start(test::FakeSampleSource::Answer answer, const data::Cursor& from = {}) {
    return start(world_, std::move(answer), from);
  }

  parallel::World world_{{.role = "student", .layout = {}}};
  test::PromptFiles files_{kPrompts};
  models::Decoder student_ = nano_llama(1);
  roles::Trainer trainer_{nano_llama(1), world_, {}};
};

TEST_F(EpisodeSourceTest, TargetsAreTheStudentsTokensOfItsTurns) {
  const Process process = start(played);
  const data::BatchStream::Step step = (*process.source)(1);
  ASSERT_EQ(sizes_of(step), (std::vector<size_t>{2, 2}));
  EXPECT_EQ(step.after.total, 4);
  for (uint64_t place = 0; place < 4; ++place) {
    const Ids prompt = files_.prompts()->get(static_cast<int64_t>(place))->prompt_ids;
    const Ids said = test::numbered_answer(place).token_ids;
    Ids ids = prompt;
    ids.insert(ids.end(), {test::word(40), said.front(), test::word(11), test::word(12)});
    ids.insert(ids.end(), said.begin() + 1, said.end());
    std::vector<uint8_t> targets(prompt.size() + 1, 0);
    targets.insert(targets.end(), {1, 0, 0});
    targets.resize(ids.size(), 1);

    const data::MicroBatch& batch = step.micro_batches.at(place / 2);
    const data::Sample& sample = batch.samples.at(place % 2);
    EXPECT_EQ(sample.input_ids, ids) << place;
    EXPECT_EQ(sample.is_target, targets) << place;
  }

  const auto numbers = process.metrics();
  const double mean = (1 + 2 + 3 + 4) / 4.0;  // what the model said, without the two words between
  EXPECT_EQ(numbers.at("completions/mean_length"), mean);
  EXPECT_EQ(numbers.at("episodes/mean_environment_tokens"), 2);
  EXPECT_EQ(numbers.at("reward"), 0.5);
  EXPECT_EQ(numbers.at("environment/solved"), 1);
}

// Each step asks for its own prompts, by the student of then; what an epoch has left is a step.
TEST_F(EpisodeSourceTest, AStepIsDrawnWithTheWeightsOfNow) {
  const Process process = start(played);
  (*process.source)(1);
  const data::BatchStream::Step last = (*process.source)(2);
  EXPECT_EQ(sizes_of(last), (std::vector<size_t>{1, 0})) << "an empty one still takes part";
  EXPECT_EQ(last.epoch, 1);

  ASSERT_EQ(process.samples->asked.size(), 2u);
  const auto& second = process.samples->asked[1];
  EXPECT_EQ(second.version, 2u);
  EXPECT_EQ(second.number, 2u);
  EXPECT_EQ(second.sample_ids, std::vector<uint64_t>{4});
  EXPECT_EQ(second.prompts.at(0), files_.prompts()->get(4)->prompt_ids);
  EXPECT_EQ(process.samples->asked[0].version, 1u);
}

TEST_F(EpisodeSourceTest, AResumedRunDrawsTheSame) {
  const Process whole = start(played);
  const data::Cursor saved = (*whole.source)(1).after;
  const data::BatchStream::Step expected = (*whole.source)(2);

  const Process resumed = start(played, saved);
  const data::BatchStream::Step got = (*resumed.source)(2);
  EXPECT_EQ(resumed.samples->asked.at(0), whole.samples->asked.at(1));
  EXPECT_EQ(got.micro_batches.at(0).samples.at(0).input_ids,
            expected.micro_batches.at(0).samples.at(0).input_ids);
  EXPECT_EQ(got.after.epoch, expected.after.epoch);
  EXPECT_EQ(got.after.total, expected.after.total);
}

// The others stay where they are: which micro-batch an episode is in depends on no other.
TEST_F(EpisodeSourceTest, WhatWasLostOrSaysNothingIsLeftOut) {
  const Process process =
      start([](const data::PromptSample& prompt, uint64_t sample_id, uint64_t version) {
        models::Completion episode = played(prompt, sample_id, version);
        if (sample_id == 0)
          return test::lost_episode(prompt.prompt_ids, test::numbered_answer(0), "gone");
        if (sample_id != 2) return episode;
        // The environment ended it before the student's first turn.
        const auto begun = static_cast<size_t>(episode.spans.front().tokens);
        episode.spans.resize(1);
        episode.token_ids.resize(begun);
        episode.logps.resize(begun);
        episode.sampling_logps.resize(begun);
        return episode;
      });
  const data::BatchStream::Step step = (*process.source)(1);
  ASSERT_EQ(sizes_of(step), (std::vector<size_t>{1, 1}));
  for (const uint64_t left : {1, 3})
    EXPECT_EQ(step.micro_batches.at(left / 2).samples.at(0).num_targets(),
              static_cast<int64_t>(test::numbered_answer(left).token_ids.size()));

  const auto numbers = process.metrics();
  EXPECT_EQ(numbers.at("episodes/num_lost"), 1);
  EXPECT_EQ(numbers.at("completions/mean_length"), (2 + 0 + 4) / 3.0) << "of those not lost";
  EXPECT_EQ(numbers.at("reward"), 2.0 / 3);
}

TEST_F(EpisodeSourceTest, AStepWithoutAnEpisodeLeftIsAnError) {
  const Process process = start([](const data::PromptSample& prompt, uint64_t sample_id, uint64_t) {
    return test::lost_episode(prompt.prompt_ids, test::numbered_answer(sample_id), "gone");
  });
  test::expect_error(ErrorCode::kUnavailable,
                     "not one of the 4 episodes of this round has a token of the student to learn "
                     "from; the first of this rank: gone",
                     [&] { (*process.source)(1); });
}

// Two ranks take every second prompt each, and say the same of all of them.
TEST_F(EpisodeSourceTest, RanksShareAStepAndItsNumbers) {
  const auto errors = test::run_rank_threads(2, [&](parallel::World& world) {
    const roles::Trainer trainer(nano_llama(1), world, {});
    const auto samples = std::make_shared<test::FakeSampleSource>(files_.tokenizer(), played);
    EpisodeSource source(world, trainer, files_.prompts(), files_.order(), samples,
                         {.rows_per_micro_batch = 1, .micro_batches = 2, .samples_folder = {}});
    EXPECT_EQ(sizes_of(source(1)), (std::vector<size_t>{1, 1}));
    const auto rank = static_cast<uint64_t>(world.dp().rank());
    EXPECT_EQ(samples->asked.at(0).sample_ids, (std::vector<uint64_t>{rank, rank + 2}));

    MetricsRow row;
    source.add_metrics(row);
    const auto numbers = numbers_of(row);
    EXPECT_EQ(numbers.at("completions/mean_length"), (1 + 2 + 3 + 4) / 4.0);
    EXPECT_EQ(numbers.at("reward"), 0.5);
    EXPECT_EQ(numbers.at("tools/call_frequency"), 1);

    // The epoch's last prompt is the first rank's.
    EXPECT_EQ(sizes_of(source(2)),
              (rank == 0 ? std::vector<size_t>{1, 0} : std::vector<size_t>{0, 0}));
  });
  for (const std::optional<Error>& error : errors)
    EXPECT_FALSE(error) << error->what();
}

// What the models say of the tokens of the first step's episodes, without batches and masks: log p
// of all ids, in float64, before each of the student's tokens, or before each token behind the
// prompt.
class Said {
 public:
  Said(const models::Decoder& student, const models::Decoder& teacher, const Ids& prompt,
       uint64_t sample_id, bool all_behind_prompt) {
    const Ids said = test::numbered_answer(sample_id).token_ids;
    Ids ids = prompt;
    ids.insert(ids.end(), {test::word(40), said.front(), test::word(11), test::word(12)});
    ids.insert(ids.end(), said.begin() + 1, said.end());
    const auto first = static_cast<int64_t>(prompt.size()) + 1;
    std::vector<int64_t> before, targets;
    for (int64_t i = first; i < static_cast<int64_t>(ids.size()); ++i) {
      const bool environment = i == first + 1 || i == first + 2;
      if (environment && !all_behind_prompt) continue;
      before.push_back(i - 1);
      targets.push_back(ids[static_cast<size_t>(i)]);
    }
    const data::Sample all{.input_ids = ids, .is_target = std::vector<uint8_t>(ids.size(), 1)};
    const models::PackedTokens tokens = data::make_micro_batch({all}).tokens;
    const at::Tensor places = at::tensor(before, at::kLong);
    const auto log_probs = [&](const models::Decoder& model) {
      const at::Tensor rows = model.hidden(tokens).index_select(0, places).to(at::kDouble);
      return at::log_softmax(at::matmul(rows, model.head_weight().to(at::kDouble).t()), 1);
    };
    const at::Tensor p = log_probs(student), q = log_probs(teacher);
    const at::Tensor index = at::tensor(targets, at::kLong).unsqueeze(1);
    count = static_cast<double>(targets.size());
    forward_kl = (q.exp() * (q - p)).sum().item<double>();
    sampled_kl = (p.gather(1, index) - q.gather(1, index)).sum().item<double>();
  }
  double count = 0, forward_kl = 0, sampled_kl = 0;  // sums
};

class EpisodeObjectiveTest : public EpisodeSourceTest {
 protected:
  // The mean over the first step, by `value`.
  double expected(double Said::*value, bool all_behind_prompt) const {
    const c10::NoGradGuard no_grad;
    const models::Decoder teacher = nano_llama(2);
    double sum = 0, count = 0;
    for (uint64_t id = 0; id < 4; ++id) {
      const Said said(student_, teacher,
                      files_.prompts()->get(static_cast<int64_t>(id))->prompt_ids, id,
                      all_behind_prompt);
      sum += said.*value;
      count += said.count;
    }
    return sum / count;
  }
  // What the first step of the objective says.
  std::map<std::string, double> first_step(Objective& objective) {
    StepSums sums{.values = std::vector<double>(objective.num_values(), 0.0)};
    MetricsRow row{.step = 1, .values = {}};
    const StepInfo info = objective.next_step(1);
    double loss = 0;
    for (size_t i = 0; i < info.micro_batches; ++i)
      loss += objective.loss_sum(student_.head(), student_.hidden(objective.tokens(i)), i, sums)
                  .item<double>();
    sums.late.read();
    row.add("loss", loss / objective.divisor(sums));
    objective.finish_step(sums, row);
    return numbers_of(row);
  }
  static std::unique_ptr<FakeFrozenRole> teacher(roles::PayloadKind kind) {
    return std::make_unique<FakeFrozenRole>(nano_llama(2), roles::PayloadSpec{.kind = kind});
  }
};

TEST_F(EpisodeObjectiveTest, TheDivergenceIsThatOfTheStudentsTokensInTheirContext) {
  const Process process = start(played);
  rpc::Agent agent({.name = "student/0", .secret = "secret"});
  std::vector<TeacherRoute> routes(1);
  routes.front().client = teacher(roles::PayloadKind::kFull);
  DistillObjective objective([&](int64_t step) { return (*process.source)(step); }, agent,
                             std::move(routes),
                             {.divergence = {.type = losses::DivergenceType::kForwardKl},
                              .is_on_policy = [](int64_t) { return true; },
                              .prefetch = 0});
  objective.also_add([&](MetricsRow& row) { process.source->add_metrics(row); });
  const auto numbers = first_step(objective);
  agent.close();
  agent.join();

  const double kl = expected(&Said::forward_kl, /*all_behind_prompt=*/false);
  EXPECT_NEAR(numbers.at("kd_loss"), kl, 1e-5 * kl);
  EXPECT_NEAR(numbers.at("loss"), kl, 1e-5 * kl);
  EXPECT_EQ(numbers.at("episodes/mean_environment_tokens"), 2) << "of the same step";
  const double broken = expected(&Said::forward_kl, /*all_behind_prompt=*/true);
  EXPECT_GT(std::abs(broken - kl), 1e-3 * kl) << "or a mask of all tokens would not be seen";
}

TEST_F(EpisodeObjectiveTest, SampledTokensAreTheStudents) {
  const Process process = start(played);
  SampledTokenObjective objective([&](int64_t step) { return (*process.source)(step); },
                                  teacher(roles::PayloadKind::kTargetLogProbs), {});
  const auto numbers = first_step(objective);
  const double kl = expected(&Said::sampled_kl, /*all_behind_prompt=*/false);
  EXPECT_NEAR(numbers.at("reverse_kl"), kl, 1e-5 * (1 + std::abs(kl)));
  const double broken = expected(&Said::sampled_kl, /*all_behind_prompt=*/true);
  EXPECT_GT(std::abs(broken - kl), 1e-3) << "or a mask of all tokens would not be seen";
}

}  // namespace
}  // namespace retort::recipes
