#include "recipes/reward_model/setup.h"

#include <memory>
#include <utility>

#include "recipes/data/pair_batches.h"
#include "recipes/dpo/audit.h"
#include "recipes/reward_model/objective.h"
#include "recipes/reward_model/reward_pairs.h"
#include "recipes/reward_model/self_check.h"
#include "recipes/rules/data.h"
#include "recipes/rules/train.h"
#include "recipes/run/recipe_run.h"

namespace retort::recipes {
namespace {

class RewardModelRun : public RecipeRun {
 public:
  explicit RewardModelRun(RunContext& context)
      : context_(context), options_(*context.recipe().reward_model) {
    const data::DataOptions& data = context.recipe().data;
    train_ = open(data.train);
    if (!data.eval.empty()) eval_ = data::eval_pair_batches(*open(data.eval), context_.batches());
  }

  const data::RowSet& rows() const override { return *train_; }
  int64_t steps_per_epoch() override {
    return data::PairBatchStream(train_, context_.batches()).steps_per_epoch();
  }

  void start(roles::Trainer& trainer, const LoopState& state) override {
    trainer_ = &trainer;
    stream_ = std::make_unique<data::PairBatchStream>(train_, context_.batches(), state.cursor);
    objective_ = std::make_unique<RewardModelObjective>(
        [this](int64_t) { return stream_->next(); },
        RewardModelObjective::Options{
            .reward_model = options_,
            .pad_token_id = trainer.decoder().config().classifier.pad_token_id,
            .share_prompts = trainer.decoder().device().is_cpu()});
  }

  Objective& objective() override { return *objective_; }
  Evaluator evaluator() override {
    if (eval_.empty()) return {};
    return [this](int64_t step) {
      return objective_->evaluate(step, *trainer_, eval_, context_.world);
    };
  }

 private:
  std::shared_ptr<RewardPairs> open(const std::vector<data::Source>& sources) const {
    return std::make_shared<RewardPairs>(sources, context_.recipe().data, context_.tokenizer,
                                         context_.chat, context_.cache(), options_);
  }

  RunContext& context_;
  const RewardModelOptions& options_;
  std::shared_ptr<RewardPairs> train_;
  std::vector<data::PairMicroBatch> eval_;
  roles::Trainer* trainer_ = nullptr;
  std::unique_ptr<data::PairBatchStream> stream_;
  std::unique_ptr<RewardModelObjective> objective_;
};

class RewardModelType : public RecipeType {
 public:
  std::string_view name() const override { return "reward_model"; }

  data::RowCheck row_check() const override { return &data::check_preference_row; }
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
