// The objectives in one process: the loss that trains, its divisor, its metrics, and what is asked
// of other roles.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "parallel/world.h"
#include "recipes/data/pair_batches.h"
#include "recipes/distill/objective.h"
#include "recipes/dpo/objective.h"
#include "recipes/losses/linear_cross_entropy.h"
#include "recipes/losses/linear_distill.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/reward_model/objective.h"
#include "recipes/sft/objective.h"
#include "rpc/agent.h"
#include "tests/recipes/objectives/fake_frozen_role.h"
#include "tests/support/folder_fixture.h"
#include "tests/support/thrown.h"

namespace retort::recipes {
namespace {

using test::FakeFrozenRole, test::nano_llama;

// `length` tokens of which all but the first two are targets.
data::Sample sample(int32_t first, int32_t length, const std::string& domain) {
  data::Sample sample;
  for (int32_t i = 0; i < length; ++i) {
    sample.input_ids.push_back((first + 7 * i) % 67);
    sample.is_target.push_back(i >= 2);
  }
  sample.fields = {{"domain", domain}};
  sample.origin = domain + ".jsonl:" + std::to_string(first);
  return sample;
}

// A step of two micro-batches.
data::BatchStream::Step step_of_two(int64_t) {
  data::BatchStream::Step step;
  step.micro_batches.push_back(
      data::make_micro_batch({sample(1, 6, "math"), sample(5, 9, "code")}));
  step.micro_batches.push_back(data::make_micro_batch({sample(11, 7, "math")}));
  return step;
}

// What one step of an objective gives.
struct StepResult {
  double loss = 0;  // of the step, divided
  StepSums sums;
  MetricsRow row;

  double metric(const std::string& name) const {
    for (const auto& [key, value] : row.values)
      if (key == name)
        return std::visit([](auto number) { return static_cast<double>(number); }, value);
    ADD_FAILURE() << "no metric " << name;
    return 0;
  }
};

StepResult run_step(Objective& objective, const models::Decoder& student, parallel::World& world) {
  StepResult result;
  result.sums.values.resize(objective.num_values(), 0.0);
  const StepInfo info = objective.next_step(1);
  objective.begin_step(world.dp());
  double sum = 0;
  for (size_t i = 0; i < info.micro_batches; ++i)
    sum += objective.loss_sum(student.head(), student.hidden(objective.tokens(i)), i, result.sums)
               .item<double>();
  result.loss = sum / objective.divisor(result.sums);
  objective.finish_step(result.sums, result.row);
  return result;
}

class ObjectiveTest : public test::FolderTest {
 protected:
  // A divergence from teachers of seeds 2, 3, ... with these weights and fields.
  StepResult distill(const std::vector<std::pair<double, std::string>>& teachers, double kd_ratio,
                     uint64_t first_seed = 2, std::function<bool(int64_t)> is_on_policy = {}) {
    std::vector<TeacherRoute> routes;
    for (const auto& [weight, domain] : teachers) {
      TeacherRoute route;
      route.client =
          std::make_unique<FakeFrozenRole>(nano_llama(first_seed + routes.size()),
                                           roles::PayloadSpec{.kind = roles::PayloadKind::kFull});
      route.weight = weight;
      if (!domain.empty()) route.when = {{"domain", domain}};
      routes.push_back(std::move(route));
    }
    rpc::Agent agent({.name = "student/0", .secret = "secret"});
    DistillObjective objective(
        step_of_two, agent, std::move(routes),
        {.divergence = {.kd_ratio = kd_ratio}, .is_on_policy = std::move(is_on_policy)});
    const StepResult result = run_step(objective, student_, world_);
    agent.close();
    agent.join();
    return result;
  }

  parallel::World world_{{.role = "student", .layout = {}}};
  models::Decoder student_ = nano_llama(1);
};

TEST_F(ObjectiveTest, SftIsTheMeanCrossEntropyOfTheTargets) {
  SftObjective objective(step_of_two);
  const StepResult step = run_step(objective, student_, world_);

  double sum = 0;
  int64_t count = 0;
  for (const data::MicroBatch& batch : step_of_two(1).micro_batches) {
    const at::Tensor rows = student_.hidden(batch.tokens).index_select(0, batch.predict_positions);
    sum += losses::linear_cross_entropy(rows, student_.head_weight(), {}, batch.targets)
               .loss_sum.item<double>();
    count += batch.num_targets();
  }
  EXPECT_EQ(step.sums.count, static_cast<double>(count));
  EXPECT_EQ(step.sums.num_tokens, 6 + 9 + 7);
  EXPECT_NEAR(step.loss, sum / static_cast<double>(count), 1e-6);
}

// Divided by the same number of targets as the plain one.
TEST_F(ObjectiveTest, SftByDftIsTheMeanOfTheWeightedTargets) {
  SftObjective objective(step_of_two, losses::CrossEntropyType::kDft);
  const StepResult step = run_step(objective, student_, world_);

  double sum = 0;
  int64_t count = 0;
  for (const data::MicroBatch& batch : step_of_two(1).micro_batches) {
    const at::Tensor rows = student_.hidden(batch.tokens).index_select(0, batch.predict_positions);
    const at::Tensor log_probs =
        losses::linear_log_probs(rows, student_.head_weight(), {}, batch.targets).log_probs;
    sum -= (log_probs.exp() * log_probs).sum().item<double>();
    count += batch.num_targets();
  }
  EXPECT_EQ(step.sums.count, static_cast<double>(count));
  EXPECT_NEAR(step.loss, sum / static_cast<double>(count), 1e-6);
}

TEST_F(ObjectiveTest, OriginsNameTheSamplesOfAMicroBatch) {
  SftObjective objective(step_of_two);
  objective.next_step(1);
  EXPECT_EQ(objective.origins(0), "math.jsonl:1, code.jsonl:5");
  EXPECT_EQ(objective.origins(1), "math.jsonl:11");
}

// Cross-entropy on what the student has drawn would teach it what it says already.
TEST_F(ObjectiveTest, StepsThatTheStudentDrawsHaveNoCrossEntropy) {
  const auto yes = [](int64_t) { return true; };
  const auto no = [](int64_t) { return false; };
  const double mixed = distill({{1.0, ""}}, 0.5).loss;
  const double alone = distill({{1.0, ""}}, 1.0).loss;
  EXPECT_GT(std::abs(mixed - alone), 0.01) << "or the share does not count";
  EXPECT_EQ(distill({{1.0, ""}}, 0.5, 2, no).loss, mixed);
  EXPECT_EQ(distill({{1.0, ""}}, 0.5, 2, yes).loss, alone);
}

TEST_F(ObjectiveTest, ATeacherThatIsTheStudentTeachesNothing) {
  const StepResult same = distill({{1.0, ""}}, 1.0, /*first_seed=*/1);
  EXPECT_LT(std::abs(same.loss), 1e-6);
  EXPECT_GT(distill({{1.0, ""}}, 1.0).loss, 0.01);
}

// The loss that trains and the metric are two expressions: both must hold the weights.
TEST_F(ObjectiveTest, SeveralTeachersCountByTheirWeights) {
  const double first = distill({{1.0, ""}}, 1.0, 2).loss;
  const double second = distill({{1.0, ""}}, 1.0, 3).loss;
  const StepResult both = distill({{0.25, ""}, {0.75, ""}}, 1.0);
  EXPECT_GT(std::abs(first - second), 1e-4) << "or the test shows nothing";
  EXPECT_NEAR(both.loss, 0.25 * first + 0.75 * second, 1e-6);
  EXPECT_NEAR(both.metric("kd_loss"), both.loss, 1e-6);
}

TEST_F(ObjectiveTest, CrossEntropyHasTheRestOfTheLoss) {
  SftObjective sft(step_of_two);
  const double ce = run_step(sft, student_, world_).loss;
  const double kd = distill({{1.0, ""}}, 1.0).loss;
  EXPECT_NEAR(distill({{1.0, ""}}, 0.3).loss, 0.7 * ce + 0.3 * kd, 1e-6);

  const double two = distill({{0.25, ""}, {0.75, ""}}, 1.0).loss;
  EXPECT_NEAR(distill({{0.25, ""}, {0.75, ""}}, 0.3).loss, 0.7 * ce + 0.3 * two, 1e-6);
}

TEST_F(ObjectiveTest, ASampleThatNoTeacherIsForIsNamed) {
  const std::string message = test::message_of([&] { distill({{1.0, "math"}}, 1.0); });
  EXPECT_NE(message.find("code.jsonl:5"), std::string::npos) << message;
}

// Pairs of one prompt; the last pair says the same twice.
data::PreferenceSample pair_of(int32_t first, std::vector<int32_t> chosen,
                               std::vector<int32_t> rejected) {
  data::PreferenceSample pair;
  pair.prompt_ids = {first, first + 1, first + 2};
  pair.chosen_ids = std::move(chosen);
  pair.rejected_ids = std::move(rejected);
  pair.origin = "pairs.jsonl:" + std::to_string(first);
  return pair;
}

data::PairBatchStream::Step pairs(int64_t) {
  data::PairBatchStream::Step step;
  step.micro_batches.push_back(
      data::make_pair_micro_batch({pair_of(3, {9, 8, 7}, {5, 4}), pair_of(20, {1}, {2, 3, 4})}));
  return step;
}

// Over pairs(), beside a reference that answers with nano_llama(seed) and writes into `folder`.
DpoObjective dpo_beside(uint64_t seed, const std::filesystem::path& folder, parallel::World& world,
                        DpoObjective::Options options = {}) {
  auto role = std::make_unique<FakeFrozenRole>(
      nano_llama(seed), roles::PayloadSpec{.kind = roles::PayloadKind::kTargetLogProbs});
  auto cache =
      std::make_unique<ReferenceCache>(folder / "cache", std::string(64, 'b'), folder / "run", 0);
  return DpoObjective(pairs,
                      std::make_unique<Reference>(std::move(role), &world.tp(), std::move(cache)),
                      std::move(options));
}

// The metric data_wait_time of the step.
TEST_F(ObjectiveTest, RewardModelSaysHowLongItsRowsWereWaitedFor) {
  RewardModelObjective objective(
      [](int64_t step) {
        data::PairBatchStream::Step batches = pairs(step);
        batches.waited = 0.25;
        return batches;
      },
      {});
  EXPECT_EQ(objective.next_step(1).data_wait_time, 0.25);
}

// Where completions do not share a prompt, the rows that are read have the same states; also one
// that lies in the prompt, since padding follows it.
TEST_F(ObjectiveTest, RewardModelReadsTheSameRowsWithoutSharedPrompts) {
  const c10::NoGradGuard no_grad;
  for (const int64_t pad_token_id : {-1, 5}) {
    data::PairMicroBatch batch = pairs(1).micro_batches[0];
    batch = data::make_pair_micro_batch({batch.pairs[0], pair_of(30, {5, 5}, {2, 5})});
    const ScoredPairs shared = make_scored_pairs(batch, {}, pad_token_id, true);
    const ScoredPairs apart = make_scored_pairs(batch, {}, pad_token_id, false);
    EXPECT_EQ(shared.tokens.num_sequences(), 2);
    EXPECT_EQ(apart.tokens.num_sequences(), 4);
    EXPECT_TRUE(at::equal(shared.tokens.input_ids.index_select(0, shared.tokens.wanted),
                          apart.tokens.input_ids.index_select(0, apart.tokens.wanted)));
    const at::Tensor difference = student_.hidden(shared.tokens) - student_.hidden(apart.tokens);
    EXPECT_LT(difference.abs().max().item<float>(), 1e-5f);
  }
}

TEST_F(ObjectiveTest, DpoAtTheReferenceIsLnTwoAndAsksForEachCompletionOnce) {
  auto role = std::make_unique<FakeFrozenRole>(
      nano_llama(1), roles::PayloadSpec{.kind = roles::PayloadKind::kTargetLogProbs});
  const FakeFrozenRole& asked = *role;
  auto cache =
      std::make_unique<ReferenceCache>(folder_ / "cache", std::string(64, 'a'), folder_ / "run", 0);
  DpoObjective objective(
      pairs, std::make_unique<Reference>(std::move(role), &world_.tp(), std::move(cache)), {});

  const StepResult first = run_step(objective, student_, world_);
  EXPECT_NEAR(first.loss, std::numbers::ln2, 1e-6);
  EXPECT_NEAR(first.metric("rewards/margins"), 0, 1e-6);
  EXPECT_EQ(first.metric("num_pairs"), 2);
  EXPECT_EQ(asked.ids.size(), 1u);

  // The same pairs again: every completion is known.
  const StepResult second = run_step(objective, student_, world_);
  EXPECT_NEAR(second.loss, first.loss, 1e-7);
  EXPECT_EQ(asked.ids.size(), 1u);
}

// As on a device, whose kernels know no forks.
TEST_F(ObjectiveTest, DpoWithoutSharedPromptsIsTheSame) {
  DpoObjective sharing = dpo_beside(2, folder_ / "shared", world_);
  DpoObjective not_sharing = dpo_beside(2, folder_ / "apart", world_, {.share_prompts = false});
  const StepResult shared = run_step(sharing, student_, world_);
  const StepResult apart = run_step(not_sharing, student_, world_);
  EXPECT_NEAR(apart.loss, shared.loss, 1e-6);
  for (const char* metric : {"rewards/chosen", "rewards/rejected", "logits/chosen"})
    EXPECT_NEAR(apart.metric(metric), shared.metric(metric), 1e-6) << metric;

  DpoObjective asked = dpo_beside(2, folder_ / "asked", world_, {.share_prompts = false});
  asked.next_step(1);
  EXPECT_TRUE(asked.tokens(0).forks.empty());
  EXPECT_EQ(asked.tokens(0).num_sequences(), 4);
}

// Truncation at the beginning leaves the two completions prompts of their own.
TEST_F(ObjectiveTest, DpoOfPairsWithTwoPrompts) {
  const c10::NoGradGuard no_grad;
  data::PreferenceSample cut = pair_of(3, {9, 8, 7}, {5, 4});
  cut.own_prompt_of_rejected = {4, 5};
  const data::PairMicroBatch batch =
      data::make_pair_micro_batch({cut, pair_of(20, {1}, {2, 3, 4})});
  const data::SharedPrompts shared = data::share_prompts(batch);
  EXPECT_EQ(shared.tokens.num_sequences(), 3);
  EXPECT_EQ(batch.tokens.num_sequences(), 4);
  const at::Tensor forked =
      student_.hidden(shared.tokens).index_select(0, shared.predict_positions);
  const at::Tensor apart = student_.hidden(batch.tokens).index_select(0, batch.predict_positions);
  EXPECT_LT((forked - apart).abs().max().item<float>(), 1e-5F);
  const at::Tensor whole = pairs(1).micro_batches[0].tokens.input_ids;
  EXPECT_EQ(batch.tokens.num_tokens(), whole.numel() - 1);
}

// The mean of the head's rows is kept for a step, and no longer: weights have changed by the next.
TEST_F(ObjectiveTest, DpoReportsTheMeanLogitsOfEachStepsWeights) {
  // The logits at the positions before the tokens of a pair's chosen completions.
  const auto expected = [](const models::Decoder& student) {
    const c10::NoGradGuard no_grad;
    const data::PairMicroBatch batch = pairs(1).micro_batches[0];
    const at::Tensor rows = student.hidden(batch.tokens).index_select(0, batch.predict_positions);
    const at::Tensor means = at::matmul(rows, student.head_weight().t()).mean(1);
    const at::Tensor of_chosen = (batch.sequence_of_row.remainder(2) == 0).to(at::kFloat);
    return ((means * of_chosen).sum() / of_chosen.sum()).item<double>();
  };

  const models::Decoder later = nano_llama(5);
  DpoObjective both = dpo_beside(1, folder_ / "both", world_);
  EXPECT_NEAR(run_step(both, student_, world_).metric("logits/chosen"), expected(student_), 1e-5);
  EXPECT_NEAR(run_step(both, later, world_).metric("logits/chosen"), expected(later), 1e-5);
  EXPECT_GT(std::abs(expected(student_) - expected(later)), 1e-3) << "or the test shows nothing";
}

TEST_F(ObjectiveTest, DpoFollowsTheDifferenceFromTheReference) {
  DpoObjective objective = dpo_beside(2, folder_ / "run", world_, {.loss = {.beta = 0.5}});
  const StepResult step = run_step(objective, student_, world_);

  const double margin = step.metric("rewards/margins");
  EXPECT_NEAR(margin, step.metric("rewards/chosen") - step.metric("rewards/rejected"), 1e-6);
  EXPECT_GT(std::abs(step.loss - std::numbers::ln2), 1e-3);
}

// log p of each row's target by a model, and log of the sum of its squared probabilities.
std::pair<at::Tensor, at::Tensor> row_log_probs(const models::Decoder& model,
                                                const data::PairMicroBatch& batch) {
  const c10::NoGradGuard no_grad;
  const at::Tensor rows = model.hidden(batch.tokens).index_select(0, batch.predict_positions);
  const at::Tensor all = at::matmul(rows, model.head_weight().t()).log_softmax(-1);
  return {all.gather(1, batch.targets.unsqueeze(1)).squeeze(1), (2 * all).exp().sum(-1).log()};
}

// LD-DPO and WPO, by their formulas on the first pair (3 and 2 tokens) and the second (1 and 3).
// The reference's plain sums lie in the same cache, and are not taken for the weighted ones.
TEST_F(ObjectiveTest, DpoWeighsTokensAndPairs) {
  DpoObjective plain = dpo_beside(2, folder_ / "run", world_);
  run_step(plain, student_, world_);

  const data::PairMicroBatch batch = pairs(1).micro_batches[0];
  const auto [policy, squares] = row_log_probs(student_, batch);
  const at::Tensor reference = row_log_probs(nano_llama(2), batch).first;
  const std::vector<double> tokens{3, 2, 1, 3};
  const std::vector<double> ld{1, 1, 0.3, 1, 1, 1, 1, 0.3, 0.3};
  std::vector<double> ratio(4), surplus(4);
  for (int64_t row = 0; row < 9; ++row) {
    const auto sequence = static_cast<size_t>(batch.sequence_of_row[row].item<int64_t>());
    const auto difference = [&](const at::Tensor& other) {
      return (policy[row] - other[row]).item<double>();
    };
    ratio[sequence] += ld[static_cast<size_t>(row)] * difference(reference);
    surplus[sequence] += difference(squares) / tokens[sequence];
  }
  double want = 0;
  for (const size_t pair : {0, 2})
    want += std::exp(surplus[pair] + surplus[pair + 1]) *
            std::log1p(std::exp(-0.5 * (ratio[pair] - ratio[pair + 1]))) / 2;

  const DpoObjective::Options options{
      .loss = {.beta = 0.5, .use_weighting = true, .ld_alpha = 0.3}};
  DpoObjective weighted = dpo_beside(2, folder_ / "run", world_, options);
  const StepResult first = run_step(weighted, student_, world_);
  EXPECT_NEAR(first.loss, want, 1e-5);
  EXPECT_NEAR(first.metric("rewards/chosen"), 0.5 * (ratio[0] + ratio[2]) / 2, 1e-5);

  // From the cache.
  EXPECT_NEAR(run_step(weighted, student_, world_).loss, first.loss, 1e-7);
}

// A nat above the lowest is beyond some bounds (divergence_watch.h).
TEST_F(ObjectiveTest, ALossThatHasABoundIsNoMeasureOfARun) {
  EXPECT_TRUE(SftObjective(step_of_two).loss_falls());
  EXPECT_FALSE(SftObjective(step_of_two, losses::CrossEntropyType::kDft).loss_falls());

  rpc::Agent agent({.name = "student/0", .secret = "secret"});
  const auto falls = [&](const losses::DivergenceOptions& divergence) {
    return DistillObjective(step_of_two, agent, {}, {.divergence = divergence}).loss_falls();
  };
  using Type = losses::DivergenceType;
  EXPECT_TRUE(falls({}));
  EXPECT_FALSE(falls({.type = Type::kTvd}));
  EXPECT_FALSE(falls({.type = Type::kJsd, .beta = 0.5}));
  EXPECT_TRUE(falls({.type = Type::kJsd, .beta = 1})) << "the reverse KL";
  EXPECT_TRUE(falls({.type = Type::kJsd, .beta = 0.5, .kd_ratio = 0.5})) << "a cross-entropy";
  agent.close();
  agent.join();
}

}  // namespace
}  // namespace retort::recipes
