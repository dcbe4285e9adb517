#include "recipes/rollout/rollout_run.h"

#include "base/error.h"
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
  const Recipe& recipe = context_.recipe();
  data::DataOptions options = recipe.data;
  // Room for the completion.
  options.max_length = options.max_length - recipe.generation->max_new_tokens + 1;
  return std::make_shared<data::PromptDataset>(sources, options, context_.tokenizer, context_.chat,
                                               context_.cache());
}

int64_t RolloutRun::steps_per_epoch() {
  throw Error(ErrorCode::kInvalidArgument, "train.num_train_epochs is not for this recipe");
}

void RolloutRun::start(roles::Trainer& trainer, const LoopState& state) {
  trainer_ = &trainer;
  rewards_ = std::make_shared<rewards::RewardSet>(context_.recipe().rewards,
                                                  context_.world.leads_replica());
  worker_ = make_rollout_worker(context_, trainer);
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

// The mean reward of one greedy completion for each held-out prompt.
MetricsRow RolloutRun::evaluate(int64_t step) {
  parallel::Group& dp = context_.world.dp();
  std::vector<data::PromptSample> mine;
  for (int64_t row = dp.rank(); row < eval_->size(); row += dp.size())
    if (auto prompt = eval_->get(row)) mine.push_back(std::move(*prompt));
  std::vector<uint64_t> ids(mine.size(), 0);

  // The student as it is after this step.
  worker_->sync(trainer_->decoder(), static_cast<uint64_t>(step) + 1, in_flight());
  Rollout rollout =
      worker_->finish(worker_->begin(step, kFirstEvaluation + static_cast<uint64_t>(step),
                                     std::move(mine), std::move(ids), /*greedy=*/true));
  worker_->score(rollout, *rewards_);

  EvaluationSums sums;
  for (const RolloutGroup& group : rollout.groups)
    for (const RolloutSample& sample : group.samples)
      sums.add(sample);
  sums.reduce(dp);

  MetricsRow row{.step = step, .values = {}};
  row.add("eval_reward", sums.reward / sums.scored)
      .add("eval_num_prompts", static_cast<int64_t>(sums.count))
      .add("eval_num_unscorable", static_cast<int64_t>(sums.count - sums.scored))
      .add("eval_completions/mean_length", sums.tokens / sums.count);
  return row;
}

}  // namespace retort::recipes
