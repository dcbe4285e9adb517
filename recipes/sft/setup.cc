#include "recipes/sft/setup.h"

#include "recipes/run/sample_run.h"
#include "recipes/sft/objective.h"
#include "recipes/sft/self_check.h"

namespace retort::recipes {
namespace {

class SftRun : public SampleRun {
 public:
  using SampleRun::SampleRun;

 protected:
  std::unique_ptr<Objective> make_objective(StepSource data) override {
    return std::make_unique<SftObjective>(std::move(data));
  }
};

class SftType : public RecipeType {
 public:
  std::string_view name() const override { return "sft"; }

  std::vector<std::string> watched_metrics(const Recipe&) const override {
    return {"mean_token_accuracy"};
  }

  void self_check(const Recipe& recipe, SelfCheck& check) const override {
    check_first_cross_entropy(recipe, check);
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
