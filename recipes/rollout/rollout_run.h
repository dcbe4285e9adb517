// A run over prompts, which grpo and rejection_sampling are: prompts in order, the generators, the
// rewards, and an evaluation by completions of held-out prompts.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/rollout/rollout_scorer.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/rank/recipe_run.h"

namespace retort::recipes {

class RolloutRun : public RecipeRun {
 public:
  explicit RolloutRun(RunContext& context);
  const data::RowSet& rows() const final { return *prompts_; }
  int64_t steps_per_epoch() final;
  std::optional<int64_t> used_places(const data::Cursor&) const override { return std::nullopt; }
  void start(roles::Trainer& trainer, const LoopState& state) final;
  Evaluator evaluator() final;

 protected:
  // Makes the objective; all below is there.
  virtual void begin(const LoopState& state) = 0;
  // Requests that are on their way when an evaluation pushes weights.
  virtual std::vector<PendingRollout*> in_flight() { return {}; }
  // Whether the evaluation after `step` may push the student's weights of then: no sample that is
  // trained on must be another for it. If not, the generators evaluate the weights that they have.
  virtual bool may_push_after(int64_t step) const = 0;
  std::unique_ptr<data::IndexStream> order_from(const data::Cursor& cursor) const;

  RunContext& context_;
  std::shared_ptr<data::PromptDataset> prompts_, eval_;
  roles::Trainer* trainer_ = nullptr;
  std::shared_ptr<RolloutScorer> scorer_;
  std::shared_ptr<SampleSource> samples_;

 private:
  std::shared_ptr<data::PromptDataset> open(const std::vector<data::Source>& sources) const;
  Rollout draw_for_evaluation(int64_t step);
  MetricsRow evaluate(int64_t step);
};

}  // namespace retort::recipes
