// A run of on_policy_distill with an environment.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "recipes/data/index_stream.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/distill/episode_source.h"
#include "recipes/distill/teaching.h"
#include "recipes/rollout/sample_source.h"
#include "recipes/run/rank/recipe_run.h"

namespace retort::recipes {

// Over prompts, of which each step draws episodes that the teachers are asked about; an evaluation
// draws those of held-out prompts.
class EpisodeRun : public RecipeRun {
 public:
  explicit EpisodeRun(RunContext& context);
  const data::RowSet& rows() const override { return *train_; }
  int64_t steps_per_epoch() override;
  std::optional<int64_t> used_places(const data::Cursor& cursor) const override {
    return cursor.consumed;
  }
  void start(roles::Trainer& trainer, const LoopState& state) override;
  Objective& objective() override { return *teaching_.objective; }
  Evaluator evaluator() override;

 private:
  std::unique_ptr<data::IndexStream> order_from(const data::Cursor& cursor) const;
  Rollout draw_held_out(int64_t step);
  MetricsRow evaluate(int64_t step);

  RunContext& context_;
  std::shared_ptr<data::PromptDataset> train_, eval_;  // eval_ may be null
  roles::Trainer* trainer_ = nullptr;
  std::shared_ptr<SampleSource> samples_;
  std::shared_ptr<EpisodeSource> source_;
  Teaching teaching_;
};

}  // namespace retort::recipes
