#include "recipes/grpo/setup.h"

#include <utility>
#include <vector>

#include "recipes/grpo/checks.h"
#include "recipes/grpo/objective.h"
#include "recipes/grpo/self_check.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rollout/audit.h"
#include "recipes/rollout/drawn_ids.h"
#include "recipes/rollout/rollout_run.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/rules/references.h"
#include "recipes/run/reference/reference_setup.h"
#include "recipes/run/reference/student_reference.h"

namespace retort::recipes {
namespace {

class GrpoRun : public RolloutRun {
 public:
  using RolloutRun::RolloutRun;
  Objective& objective() override { return *objective_; }
  // The cursor stands where the round begins. In the midst of a round prompts behind it are used
  // already, and resampling uses as many more as it needs.
  std::optional<int64_t> used_places(const data::Cursor& cursor) const override {
    const GrpoOptions& grpo = *context_.recipe().grpo;
    if (grpo.steps_per_rollout() > 1 || grpo.max_resamples > 0) return std::nullopt;
    return cursor.consumed;
  }

 protected:
  void begin(const LoopState& state) override {
    const Recipe& recipe = context_.recipe();
    std::unique_ptr<Reference> reference;
    const double temperature = recipe.generation->sampling.temperature;
    if (recipe.grpo->beta > 0)
      reference = is_own_reference(recipe.roles, recipe.grpo->reference)
                      ? make_student_reference(*trainer_, *recipe.student().lora, temperature,
                                               num_drawn_ids(context_))
                      : make_reference(context_, recipe.grpo->reference, temperature,
                                       num_drawn_ids(context_));

    objective_ =
        std::make_unique<GrpoObjective>(GrpoObjective::Parts{.world = context_.world,
                                                             .trainer = *trainer_,
                                                             .prompts = prompts_,
                                                             .stream = order_from(state.cursor),
                                                             .samples = samples_,
                                                             .scorer = scorer_,
                                                             .reference = std::move(reference)},
                                        options_from(state));
  }

  std::vector<PendingRollout*> in_flight() override { return objective_->in_flight(); }
  bool may_push_after(int64_t step) const override { return objective_->pushes_after(step); }

 private:
  GrpoObjective::Options options_from(const LoopState& state) const {
    const Recipe& recipe = context_.recipe();
    const TrainOptions& train = recipe.train;
    const GenerationOptions& generation = *recipe.generation;
    const int64_t per_rank = *train.per_device_train_batch_size * train.gradient_accumulation_steps;
    std::vector<double> weights;
    for (const rewards::RewardOptions& reward : recipe.rewards)
      weights.push_back(reward.weight);
    return {.grpo = *recipe.grpo,
            .reward_weights = std::move(weights),
            .num_generations = generation.num_generations,
            .max_new_tokens = recipe.longest_completion(),
            .episodes = recipe.environment.has_value(),
            .temperature = generation.sampling.temperature,
            .num_ids = num_drawn_ids(context_),
            .sync_every_steps = recipe.weight_sync->every_steps,
            .prompts_per_round = per_rank * context_.world.dp().size() /
                                 generation.num_generations * recipe.grpo->num_mini_batches,
            .micro_batches = train.gradient_accumulation_steps,
            .rows_per_micro_batch = *train.per_device_train_batch_size,
            .save_steps = train.save_steps,
            .exit_interval = train.exit_interval,
            .max_steps = *train.max_steps,
            .start_step = state.step,
            .start_cursor = state.cursor,
            .samples_folder = samples_folder(generation, context_.rank.run_folder)};
  }

  std::unique_ptr<GrpoObjective> objective_;
};

class GrpoType : public RecipeType {
 public:
  std::string_view name() const override { return "grpo"; }

  data::RowCheck row_check(const Recipe&) const override { return &data::check_prompt_row; }

  std::vector<std::string> watched_metrics(const Recipe&) const override {
    return {"episodes/num_lost", "reward", "entropy", "completions/mean_length"};
  }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "grpo", .least = "grpo: {loss_type: dapo}", .required = false},
            {.name = "rewards", .least = "rewards: [{type: numeric}]"}};
  }

  void resolve(Recipe& recipe, const RecipePlaces&) const override {
    if (!recipe.grpo) recipe.grpo.emplace();
  }

  double learning_rate(bool lora) const override { return lora ? 1e-5 : 1e-6; }

  std::vector<std::string> frozen_roles(const Recipe& recipe) const override {
    if (recipe.grpo->beta == 0) return {};
    return reference_roles(recipe.roles, recipe.grpo->reference);
  }

  bool compares_with_student(const Recipe& recipe) const override {
    return recipe.grpo->beta > 0 && is_own_reference(recipe.roles, recipe.grpo->reference);
  }

  bool generates(const Recipe&) const override { return true; }

  std::optional<double> episodes_at_once(const Recipe& recipe) const override {
    const int64_t mini_batches = recipe.grpo ? recipe.grpo->num_mini_batches : 1;
    return rows_per_step(recipe) * static_cast<double>(mini_batches);
  }

  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    check_grpo(recipe, places);
  }

  // A round's answers are waited for before its first step, and hold for all of its iterations.
  RecipePlan plan(const Recipe& recipe) const override {
    RecipePlan plan;
    plan.loss.kept_logits_bytes = losses::LogProbsOptions{}.kept_bytes;
    for (const std::string& role : frozen_roles(recipe))
      plan.links.push_back(plan_reference_link(recipe, role, tokens_per_step(recipe, 1),
                                               recipe.grpo->num_mini_batches - 1));
    if (recipe.grpo->beta > 0 && plan.links.empty()) plan.extra_student_forwards += 1;
    if (recipe.grpo->recomputes_old()) plan.extra_student_forwards += 1;
    if (recipe.grpo->picks_tokens()) plan.extra_student_forwards += 1;
    return plan;
  }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    audit_prompts(recipe, num_samples);
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_grpo_numbers(check, recipe);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    return std::make_unique<GrpoRun>(context);
  }
};

}  // namespace

const RecipeType* grpo_type() {
  static const GrpoType type;
  return &type;
}

}  // namespace retort::recipes
