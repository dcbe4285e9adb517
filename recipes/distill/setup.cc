#include "recipes/distill/setup.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "recipes/audit/audit.h"
#include "recipes/distill/checks.h"
#include "recipes/distill/episode_run.h"
#include "recipes/distill/on_policy.h"
#include "recipes/distill/plan.h"
#include "recipes/distill/row_filter.h"
#include "recipes/distill/self_check.h"
#include "recipes/distill/teaching.h"
#include "recipes/distill/two_tokenizers.h"
#include "recipes/distill/write_cache.h"
#include "recipes/rollout/audit.h"
#include "recipes/rollout/rollout_worker_setup.h"
#include "recipes/rollout/sample_files.h"
#include "recipes/run/inputs/chat.h"
#include "recipes/run/rank/sample_run.h"
#include "recipes/run/rank/student_options.h"
#include "roles/payload/payload.h"

namespace retort::recipes {
namespace {

class DistillRun : public SampleRun {
 public:
  explicit DistillRun(RunContext& context)
      : SampleRun(context, distill_row_rule(context.recipe(), context.chat),
                  distill_evaluation_rule(context.recipe(), context.chat)),
        options_(*context.recipe().distill) {}

 protected:
  std::unique_ptr<Objective> make_objective(StepSource data, int64_t start_step) override {
    const DrawAhead draws = draw_ahead(context().recipe(), start_step, last_step());
    std::shared_ptr<OnPolicySource> drawn;
    if (options_.lmbda > 0) {
      drawn = on_policy(std::move(data), draws);
      data = [drawn](int64_t step) { return (*drawn)(step); };
    }
    Teaching teaching = make_teaching(context(), std::move(data), &train(), draws);
    if (drawn) teaching.objective->also_add([drawn](MetricsRow& row) { drawn->add_metrics(row); });
    evaluate_ = std::move(teaching.evaluate);
    return std::move(teaching.objective);
  }
  void add_to_evaluation(const std::vector<data::MicroBatch>& batches, MetricsRow& row) override {
    if (evaluate_) evaluate_(trainer(), batches, context().world, row);
  }

 private:
  // Counting the steps of epochs takes a walk over the rows, which only drawing ahead needs.
  int64_t last_step() {
    if (options_.max_staleness == 0) return 0;
    return total_steps(context().recipe().train, [this] { return steps_per_epoch(); });
  }

  std::shared_ptr<OnPolicySource> on_policy(StepSource data, const DrawAhead& draws) {
    const Recipe& recipe = context().recipe();
    return std::make_shared<OnPolicySource>(
        context().world, trainer(), std::move(data), make_rollout_worker(context(), trainer()),
        OnPolicySource::Options{
            .lmbda = options_.lmbda,
            .seed = static_cast<uint64_t>(recipe.seed),
            .max_length = recipe.data.max_length,
            .max_new_tokens = recipe.generation->max_new_tokens,
            .samples_folder = samples_folder(*recipe.generation, context().rank.run_folder),
            .tokenizer = context().tokenizer,
            .both = load_two_tokenizers(recipe),
            .draws = draws});
  }

  const DistillOptions& options_;
  Teaching::Evaluate evaluate_;  // empty where there is no divergence to evaluate
};

class DistillType : public RecipeType {
 public:
  std::string_view name() const override { return "distill"; }

  std::vector<std::string> watched_metrics(const Recipe&) const override {
    return {"episodes/num_lost", "kd_loss"};
  }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "distill", .least = "distill: {teachers: [{role: teacher}]}"}};
  }

  void resolve(Recipe& recipe, const RecipePlaces& places) const override {
    assume_teacher(recipe, places);
  }

  double learning_rate(bool lora) const override { return lora ? 1e-5 : 1e-6; }

  std::vector<std::string> frozen_roles(const Recipe& recipe) const override {
    return teacher_roles(*recipe.distill);
  }

  // Log-probabilities of tokens are read in host memory, and draws are made there.
  std::vector<std::string> device_roles(const Recipe& recipe) const override {
    if (!roles::may_be_on_device(recipe.distill->payload)) return {};
    return teacher_roles(*recipe.distill);
  }

  bool reads_by_own_tokenizer(const Recipe& recipe, const std::string& role) const override {
    const std::vector<std::string> teachers = teacher_roles(*recipe.distill);
    return recipe.distill->crosses_tokenizers() &&
           std::ranges::find(teachers, role) != teachers.end();
  }

  bool generates(const Recipe& recipe) const override { return recipe.distill->lmbda > 0; }
  std::string no_generation(const Recipe&) const override {
    return "has no effect with distill.lmbda: 0";
  }

  data::RowCheck row_check(const Recipe& recipe) const override {
    return recipe.environment ? &data::check_prompt_row : RecipeType::row_check(recipe);
  }

  // Answers of the data are no episodes, so all batches must be the student's.
  std::optional<double> episodes_at_once(const Recipe& recipe) const override {
    if (!recipe.distill || recipe.distill->lmbda != 1) return std::nullopt;
    return rows_per_step(recipe);
  }

  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    check_distill(recipe, places);
  }

  std::vector<InputPath> inputs(const Recipe& recipe) const override {
    std::vector<InputPath> paths;
    for (size_t i = 0; i < recipe.distill->teachers.size(); ++i)
      paths.push_back({.key = "distill.teachers[" + std::to_string(i) + "].cache",
                       .path = recipe.distill->teachers[i].cache});
    return paths;
  }

  void check_inputs(const Recipe& recipe, const RecipePlaces& places) const override {
    check_hidden_states(recipe, places);
    check_loss_top_k(recipe, places);
    if (recipe.distill->crosses_tokenizers())
      check_two_tokenizers(recipe, places);
    else
      warn_of_more_ids(recipe, places);
    open_caches(recipe, places);
  }

  void check_cache(const Recipe& recipe) const override { check_cache_recipe(recipe); }
  void write_cache(const RankContext& context) const override { write_payload_cache(context); }

  RecipePlan plan(const Recipe& recipe) const override { return plan_distill(recipe); }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    if (recipe.environment) return audit_prompts(recipe, num_samples);
    audit_samples(recipe, num_samples, distill_row_rule(recipe, load_chat(recipe)));
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_distill_numbers(check, recipe);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    if (context.recipe().environment) return std::make_unique<EpisodeRun>(context);
    return std::make_unique<DistillRun>(context);
  }
};

class OnPolicyDistillType : public DistillType {
 public:
  std::string_view name() const override { return "on_policy_distill"; }

  void resolve(Recipe& recipe, const RecipePlaces& places) const override {
    DistillType::resolve(recipe, places);
    if (!recipe.distill) return;
    if (places.written({"distill", "lmbda"}) && recipe.distill->lmbda != 1.0)
      places.refuse({"distill", "lmbda"},
                    "on_policy_distill is distill with lmbda: 1.0; write recipe: distill for "
                    "another share of on-policy batches");
    recipe.distill->lmbda = 1.0;
  }
};

}  // namespace

const RecipeType* distill_type() {
  static const DistillType type;
  return &type;
}

const RecipeType* on_policy_distill_type() {
  static const OnPolicyDistillType type;
  return &type;
}

}  // namespace retort::recipes
