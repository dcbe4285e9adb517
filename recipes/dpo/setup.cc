#include "recipes/dpo/setup.h"

#include <memory>
#include <utility>
#include <vector>

#include "recipes/data/pair_batches.h"
#include "recipes/data/preference_dataset.h"
#include "recipes/dpo/audit.h"
#include "recipes/dpo/objective.h"
#include "recipes/dpo/self_check.h"
#include "recipes/losses/linear_log_probs.h"
#include "recipes/rules/data.h"
#include "recipes/rules/references.h"
#include "recipes/rules/train.h"
#include "recipes/run/rank/stream_run.h"
#include "recipes/run/reference/reference_setup.h"
#include "recipes/run/reference/student_reference.h"

namespace retort::recipes {
namespace {

std::shared_ptr<const data::PreferenceDataset> open_pairs(
    const RunContext& context, const std::vector<data::Source>& sources) {
  return std::make_shared<data::PreferenceDataset>(
      sources, context.recipe().data, context.tokenizer, context.chat, context.cache());
}

class DpoRun : public StreamRun<data::PreferenceDataset, data::PairBatchStream, DpoObjective> {
 public:
  explicit DpoRun(RunContext& context)
      : StreamRun(context, &open_pairs, &data::eval_pair_batches),
        options_(*context.recipe().dpo) {}

 protected:
  std::unique_ptr<DpoObjective> make_objective(DpoObjective::PairSource pairs,
                                               roles::Trainer& trainer) override {
    trainer_ = &trainer;
    std::unique_ptr<Reference> reference;
    if (losses::needs_reference(options_.preference()))
      reference =
          is_own_reference(context_.recipe().roles, options_.reference)
              ? make_student_reference(trainer, *context_.recipe().student().lora)
              : make_cached_reference(context_, options_.reference, options_.reference_cache);

    const parallel::World& world = context_.world;
    DpoObjective::Options options =
        dpo_objective_options(options_, world.coordinate().dp, world.options().layout.dp);
    options.student = &trainer;
    options.share_prompts = trainer.decoder().device().is_cpu();
    return std::make_unique<DpoObjective>(std::move(pairs), std::move(reference),
                                          std::move(options));
  }

  MetricsRow evaluate(DpoObjective& objective, int64_t step,
                      const std::vector<data::PairMicroBatch>& batches) override {
    return objective.evaluate(step, *trainer_, batches, context_.world);
  }

 private:
  const DpoOptions& options_;
  roles::Trainer* trainer_ = nullptr;
};

class DpoType : public RecipeType {
 public:
  std::string_view name() const override { return "dpo"; }

  data::RowCheck row_check(const Recipe&) const override { return &data::check_preference_row; }
  bool forms_batches_by_length() const override { return true; }

  std::vector<std::string> watched_metrics(const Recipe&) const override {
    return {"rewards/margins", "rewards/accuracies"};
  }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "dpo", .least = "dpo: {beta: 0.1}", .required = false}};
  }

  void resolve(Recipe& recipe, const RecipePlaces&) const override {
    if (!recipe.dpo) recipe.dpo.emplace();
  }

  double learning_rate(bool lora) const override { return lora ? 1e-5 : 1e-6; }

  std::vector<std::string> frozen_roles(const Recipe& recipe) const override {
    if (!losses::needs_reference(recipe.dpo->preference())) return {};
    return reference_roles(recipe.roles, recipe.dpo->reference);
  }

  bool compares_with_student(const Recipe& recipe) const override {
    return losses::needs_reference(recipe.dpo->preference()) &&
           is_own_reference(recipe.roles, recipe.dpo->reference);
  }

  // Every loss but simpo, orpo and sft compares with a reference.
  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    const DpoOptions& dpo = *recipe.dpo;
    const bool compares = losses::needs_reference(dpo.preference());
    const std::string why_not = "no loss of this recipe compares with a reference";
    check_no_packing(recipe.data, places, "pairs");
    check_no_target_choice(recipe.data, places, "both completions of a pair");
    check_reference(recipe.roles, places, {"dpo", "reference"}, dpo.reference, compares, why_not);
    if (compares)
      check_own_reference(recipe.roles, places, "dpo", dpo.reference, dpo.reference_cache,
                          dpo.prefetch, DpoOptions().prefetch);
    if (losses::needs_counterparts(dpo.preference()))
      check_no_skipped_steps(recipe.train, places, "counterparts, which all pairs share");
    if (!compares && !dpo.reference_cache.empty())
      places.refuse({"dpo", "reference_cache"}, "has no effect: " + why_not + "; remove the key");
    if (!compares && dpo.prefetch != DpoOptions().prefetch)
      places.refuse({"dpo", "prefetch"}, "has no effect: " + why_not + "; remove the key");
    check_pair_batches(recipe.train, recipe.data, places);
  }

  std::vector<InputPath> inputs(const Recipe& recipe) const override {
    return {{.key = "dpo.reference_cache", .path = recipe.dpo->reference_cache}};
  }

  // A row is a pair: each of its completions may be data.max_length long with the prompt.
  RecipePlan plan(const Recipe& recipe) const override {
    // Counterparts are found with a forward pass of their own, and so is what the student said
    // before its training.
    const losses::PreferenceOptions preference = recipe.dpo->preference();
    const bool asks_itself = compares_with_student(recipe);
    RecipePlan plan{.sequences_per_row = 2,
                    .forks = recipe.student().world.device == parallel::Device::kCpu,
                    .extra_student_forwards =
                        (losses::needs_counterparts(preference) ? 1 : 0) + (asks_itself ? 1 : 0)};
    plan.loss.kept_logits_bytes = losses::LogProbsOptions{}.kept_bytes;
    for (const std::string& role : frozen_roles(recipe))
      plan.links.push_back(
          plan_reference_link(recipe, role, tokens_per_step(recipe, 2), recipe.dpo->prefetch));
    return plan;
  }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    audit_pairs(recipe, num_samples);
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_dpo_numbers(check, recipe);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    return std::make_unique<DpoRun>(context);
  }
};

}  // namespace

DpoObjective::Options dpo_objective_options(const DpoOptions& options, int64_t dp_rank,
                                            int64_t dp_size) {
  return {.loss = options.preference(),
          .prefetch = options.prefetch,
          .dp_rank = dp_rank,
          .dp_size = dp_size};
}

const RecipeType* dpo_type() {
  static const DpoType type;
  return &type;
}

}  // namespace retort::recipes
