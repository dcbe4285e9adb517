#include "recipes/rollout/rollout_run.h"

#include "base/error.h"
#include "parallel/vote.h"
#include "recipes/rollout/prompts.h"
#include "recipes/rollout/reward_connector.h"
#include "recipes/rollout/rollout_worker_setup.h"

namespace retort::recipes {
namespace {

// Evaluations' requests have numbers above those of all rounds.
constexpr uint64_t kFirstEvaluation = uint64_t{1} << 41;

// Of one greedy completion for each prompt, on all dp ranks.
struct EvaluationSums {
  double reward = 0, scored = 0, tokens = 0, count = 0;

  void add(const RolloutSample& sample) {
    reward += sample.reward.value_or(0);
    scored += sample.reward ? 1 : 0;
    tokens += static_cast<double>(sample.completion.token_ids.size());
    count += 1;
  }
  void reduce(parallel::Group& dp) {
    for (double* sum : {&reward, &scored, &tokens, &count})
      *sum = dp.all_reduce(*sum);
  }
};

}  // namespace

RolloutRun::RolloutRun(RunContext& context) : context_(context) {
  const data::DataOptions& data = context.recipe().data;
  prompts_ = open(data.train);
  if (!data.eval.empty()) eval_ = open(data.eval);
}

std::shared_ptr<data::PromptDataset> RolloutRun::open(
    const std::vector<data::Source>& sources) const {
  return open_prompts(context_.recipe(), sources, context_.tokenizer, context_.chat,
                      context_.cache());
}

int64_t RolloutRun::steps_per_epoch() {
  throw Error(ErrorCode::kInvalidArgument, "train.num_train_epochs is not for this recipe");
}

void RolloutRun::start(roles::Trainer& trainer, const LoopState& state) {
  trainer_ = &trainer;
  scorer_ = std::make_shared<RolloutScorer>(
      std::make_shared<rewards::RewardSet>(
          context_.recipe().rewards, context_.world.leads_replica(), reward_connector(context_)),
      context_.tokenizer);
  samples_ = make_rollout_worker(context_, trainer);
  begin(state);
}

Evaluator RolloutRun::evaluator() {
  if (!eval_) return {};
  return [this](int64_t step) { return evaluate(step); };
}

std::unique_ptr<data::IndexStream> RolloutRun::order_from(const data::Cursor& cursor) const {
  const Recipe& recipe = context_.recipe();
  return std::make_unique<data::IndexStream>(
      prompts_,
      data::IndexOptions{.seed = static_cast<uint64_t>(recipe.seed),
                         .shuffle = recipe.data.shuffle},
      cursor);
}

// One completion for each held-out prompt of this dp rank, by the student as it is after `step`, or
// as it was when its weights were last pushed: an evaluation changes nothing of the training.
Rollout RolloutRun::draw_greedily(int64_t step) {
  parallel::Group& dp = context_.world.dp();
  RolloutRequest request{.step = step,
                         .number = kFirstEvaluation + static_cast<uint64_t>(step),
                         .num_generations = 1,
                         .greedy = true};
  for (int64_t row = dp.rank(); row < eval_->size(); row += dp.size())
    if (auto prompt = eval_->get(row)) request.prompts.push_back(std::move(*prompt));
  request.sample_ids.resize(request.prompts.size(), 0);

  if (may_push_after(step))
    samples_->sync(trainer_->decoder(), static_cast<uint64_t>(step) + 1, in_flight());
  return scorer_->finish(*samples_, scorer_->begin(*samples_, std::move(request)),
                         context_.world.mp());
}

// The mean reward over all held-out prompts. Where a dp rank fails to draw or to score its own, the
// others learn it by the vote, before they come to the sums.
MetricsRow RolloutRun::evaluate(int64_t step) {
  const Rollout rollout =
      parallel::run_on_all(context_.world.all(), [&] { return draw_greedily(step); });

  EvaluationSums sums;
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples)
      sums.add(sample);
  sums.reduce(context_.world.dp());

  MetricsRow row{.step = step, .values = {}};
  row.add("eval_reward", sums.reward / sums.scored)
      .add("eval_num_prompts", static_cast<int64_t>(sums.count))
      .add("eval_num_unscorable", static_cast<int64_t>(sums.count - sums.scored))
      .add("eval_completions/mean_length", sums.tokens / sums.count)
      .add("eval_weight_version", static_cast<int64_t>(rollout.weight_version));
  return row;
}

}  // namespace retort::recipes
