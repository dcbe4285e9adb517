#include "recipes/rollout/rollout_run.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "parallel/vote.h"
#include "recipes/rewards/reward.h"
#include "recipes/rollout/answer_ending.h"
#include "recipes/rollout/draw_options.h"
#include "recipes/rollout/held_out.h"
#include "recipes/rollout/prompts.h"
#include "recipes/rollout/rollout_worker_setup.h"
#include "recipes/run/rank/recipe_run.h"
#include "recipes/run/rank/role_connections.h"
#include "roles/reward/client.h"
#include "roles/reward/judge_client.h"

namespace retort::recipes {
namespace {

rewards::AskRole ask_model(RunContext& context, const rewards::RewardOptions& options) {
  const std::shared_ptr<roles::RewardClient> client = connect_reward_role(context, *options.role);
  const AnswerEnding ending(context.chat, context.tokenizer, context.recipe().data.max_length);
  const auto score = [client, ending, label = options.label.value_or(0)](
                         const std::vector<rewards::RewardInput>& inputs) {
    std::vector<std::vector<int32_t>> completions;  // which the sequences look at
    for (const rewards::RewardInput& input : inputs)
      completions.push_back(ending.completion_of(input));

    std::vector<roles::RewardClient::Sequence> sequences;
    for (size_t i = 0; i < inputs.size(); ++i)
      sequences.push_back({.prompt = inputs[i].prompt_ids, .completion = completions[i]});
    return client->score(sequences, label);
  };
  return {.score = score, .stop = [client] { client->stop(); }};
}

rewards::AskJudge ask_judge(RunContext& context, const rewards::RewardOptions& options) {
  const std::shared_ptr<roles::JudgeClient> client = connect_judge_role(context, *options.role);
  const auto answers = [client](std::vector<std::string> questions, int64_t max_new_tokens) {
    std::vector<rewards::Said> said;
    for (roles::JudgeClient::Said& one : client->ask(std::move(questions), max_new_tokens))
      said.push_back({.text = std::move(one.text), .cut = one.cut});
    return said;
  };
  return {.answers = answers, .stop = [client] { client->stop(); }};
}

// Connects to the role of an entry when it is called, on the rank that scores; what that returns
// asks the role with the ids of prompt and completion. `context` must outlive both.
rewards::ConnectRoles reward_connector(RunContext& context) {
  return {.model = [&](const auto& options) { return ask_model(context, options); },
          .judge = [&](const auto& options) { return ask_judge(context, options); }};
}

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
      context_.tokenizer, stop_rule_of(*context_.recipe().generation, context_.tokenizer));
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

// Draws completions for each held-out prompt of this dp rank, by the student as it is after `step`,
// or as it was when its weights were last pushed: an evaluation changes nothing of the training.
Rollout RolloutRun::draw_for_evaluation(int64_t step) {
  RolloutRequest request =
      held_out_request(*eval_, context_.world.dp(), *context_.recipe().generation, step);
  // Weights are pushed only where training would push the same ones next: no sample that is trained
  // on may be another for an evaluation.
  if (may_push_after(step))
    samples_->sync(trainer_->decoder(), static_cast<uint64_t>(step) + 1, in_flight());
  return scorer_->finish(*samples_, scorer_->begin(*samples_, std::move(request)),
                         context_.world.mp());
}

// Returns the mean reward over all held-out prompts. Where a dp rank fails to draw or to score its
// own, the others learn it by the vote, before they come to the sums.
MetricsRow RolloutRun::evaluate(int64_t step) {
  const Rollout rollout =
      parallel::run_on_all(context_.world.all(), [&] { return draw_for_evaluation(step); });
  return held_out_metrics(rollout, *context_.recipe().generation, context_.world.dp(), step);
}

}  // namespace retort::recipes
