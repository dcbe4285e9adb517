// A run over packed samples, which sft and distill are: the data, and an evaluation by
// cross-entropy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "recipes/data/batches.h"
#include "recipes/data/dataset.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/rank/recipe_run.h"

namespace retort::recipes {

class SampleRun : public RecipeRun {
 public:
  // The rules of training rows, and of those of an evaluation.
  explicit SampleRun(RunContext& context, data::SampleRule rule = {},
                     data::SampleRule evaluation_rule = {});
  const data::RowSet& rows() const final { return *train_; }
  int64_t steps_per_epoch() final;
  void start(roles::Trainer& trainer, const LoopState& state) final;
  Objective& objective() final { return *objective_; }
  Evaluator evaluator() final;

 protected:
  // The objective over the batches that `data` yields, of the steps behind `start_step`;
  // `trainer()` is set.
  virtual std::unique_ptr<Objective> make_objective(StepSource data, int64_t start_step) = 0;
  // What an evaluation says beside the cross-entropy, of this rank's batches. Every rank calls it.
  virtual void add_to_evaluation(const std::vector<data::MicroBatch>& batches, MetricsRow& row);

  RunContext& context() { return context_; }
  const data::Dataset& train() const { return *train_; }
  roles::Trainer& trainer() { return *trainer_; }

 private:
  std::shared_ptr<data::Dataset> open(const std::vector<data::Source>& sources,
                                      data::SampleRule rule) const;

  RunContext& context_;
  std::shared_ptr<data::Dataset> train_;
  std::vector<data::MicroBatch> eval_;
  roles::Trainer* trainer_ = nullptr;
  std::unique_ptr<data::BatchStream> stream_;
  std::unique_ptr<Objective> objective_;
};

}  // namespace retort::recipes
