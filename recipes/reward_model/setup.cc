#include "recipes/reward_model/setup.h"

#include <memory>
#include <utility>
#include <vector>

#include "recipes/data/pair_batches.h"
#include "recipes/data/preference_dataset.h"
#include "recipes/dpo/audit.h"
#include "recipes/reward_model/objective.h"
#include "recipes/reward_model/reward_pairs.h"
#include "recipes/reward_model/self_check.h"
#include "recipes/rules/data.h"
#include "recipes/rules/train.h"
#include "recipes/run/rank/stream_run.h"

namespace retort::recipes {
namespace {

std::shared_ptr<const data::PreferenceDataset> open_reward_pairs(
    const RunContext& context, const std::vector<data::Source>& sources) {
  return std::make_shared<RewardPairs>(sources, context.recipe().data, context.tokenizer,
                                       context.chat, context.cache(),
                                       *context.recipe().reward_model);
}

class RewardModelRun
    : public StreamRun<data::PreferenceDataset, data::PairBatchStream, RewardModelObjective> {
 public:
  explicit RewardModelRun(RunContext& context)
      : StreamRun(context, &open_reward_pairs, &data::eval_pair_batches) {}

 protected:
  std::unique_ptr<RewardModelObjective> make_objective(RewardModelObjective::PairSource pairs,
                                                       roles::Trainer& trainer) override {
    trainer_ = &trainer;
    return std::make_unique<RewardModelObjective>(
        std::move(pairs), RewardModelObjective::Options{
                              .reward_model = *context_.recipe().reward_model,
                              .pad_token_id = trainer.decoder().config().classifier.pad_token_id,
                              .share_prompts = trainer.decoder().device().is_cpu()});
  }

  MetricsRow evaluate(RewardModelObjective& objective, int64_t step,
                      const std::vector<data::PairMicroBatch>& batches) override {
    return objective.evaluate(step, *trainer_, batches, context_.world);
  }

 private:
  roles::Trainer* trainer_ = nullptr;
};

class RewardModelType : public RecipeType {
 public:
  std::string_view name() const override { return "reward_model"; }

  data::RowCheck row_check(const Recipe&) const override { return &data::check_preference_row; }
  bool forms_batches_by_length() const override { return true; }

  std::vector<std::string> watched_metrics(const Recipe&) const override {
    return {"accuracy", "margin"};
  }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "reward_model", .least = "reward_model: {num_labels: 1}", .required = false}};
  }

  void resolve(Recipe& recipe, const RecipePlaces&) const override {
    if (!recipe.reward_model) recipe.reward_model.emplace();
  }

  double learning_rate(bool lora) const override { return lora ? 1e-3 : 1e-4; }

  int64_t score_labels(const Recipe& recipe) const override {
    return recipe.reward_model->num_labels;
  }

  void check(const Recipe& recipe, const RecipePlaces& places) const override {
    check_no_packing(recipe.data, places, "pairs");
    check_keeps_start(recipe.data, places, "what is scored is read from its beginning");
    check_no_target_choice(recipe.data, places, "scores of both completions of a pair");
    check_pair_batches(recipe.train, recipe.data, places);
  }

  // A row is a pair: each of its completions may be data.max_length long with the prompt.
  RecipePlan plan(const Recipe& recipe) const override {
    return {.sequences_per_row = 2,
            .forks = recipe.student().world.device == parallel::Device::kCpu};
  }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    audit_pairs(recipe, num_samples);
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_reward_model_numbers(check, recipe);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    return std::make_unique<RewardModelRun>(context);
  }
};

}  // namespace

const RecipeType* reward_model_type() {
  static const RewardModelType type;
  return &type;
}

}  // namespace retort::recipes
