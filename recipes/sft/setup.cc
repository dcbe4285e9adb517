#include "recipes/sft/setup.h"

#include "recipes/audit/audit.h"
#include "recipes/run/rank/sample_run.h"
#include "recipes/sft/objective.h"
#include "recipes/sft/self_check.h"

namespace retort::recipes {
namespace {

class SftRun : public SampleRun {
 public:
  explicit SftRun(RunContext& context)
      : SampleRun(context), loss_type_(context.recipe().sft.value_or(SftOptions()).loss_type) {}

 protected:
  std::unique_ptr<Objective> make_objective(StepSource data, int64_t) override {
    return std::make_unique<SftObjective>(std::move(data), loss_type_);
  }

 private:
  const losses::CrossEntropyType loss_type_;
};

class SftType : public RecipeType {
 public:
  std::string_view name() const override { return "sft"; }

  std::vector<BlockUse> blocks() const override {
    return {{.name = "sft", .least = "sft: {loss_type: nll}", .required = false}};
  }

  void resolve(Recipe& recipe, const RecipePlaces&) const override {
    if (!recipe.sft) recipe.sft.emplace();
  }

  bool adds_embedding_noise() const override { return true; }

  std::vector<std::string> watched_metrics(const Recipe&) const override {
    return {"mean_token_accuracy"};
  }

  void audit(const Recipe& recipe, int64_t num_samples) const override {
    audit_samples(recipe, num_samples);
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_first_cross_entropy(recipe, check, recipe.sft.value().loss_type);
  }

  std::unique_ptr<RecipeRun> make_run(RunContext& context) const override {
    return std::make_unique<SftRun>(context);
  }
};

}  // namespace

const RecipeType* sft_type() {
  static const SftType type;
  return &type;
}

}  // namespace retort::recipes
