// A run over rows of a kind of its own, whose objective evaluates them too: what dpo, kto and
// reward_model are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "recipes/data/batches.h"
#include "recipes/data/row_set.h"
#include "recipes/run/loop/objective.h"
#include "recipes/run/rank/recipe_run.h"
#include "roles/trainer/trainer.h"

namespace retort::recipes {

// `Set`: the rows; `Stream`: their steps, a data::StepStream; `RowObjective`: what they are trained
// with.
template <class Set, class Stream, class RowObjective>
class StreamRun : public RecipeRun {
 public:
  using Step = typename Stream::Step;
  using MicroBatches = decltype(Step::micro_batches);
  using OpenSet = std::shared_ptr<const Set> (*)(const RunContext& context,
                                                 const std::vector<data::Source>& sources);
  using EvalBatches = MicroBatches (*)(const Set& set, const data::BatchOptions& options);

  // Opens data.train, and takes the batches of data.eval.
  StreamRun(RunContext& context, OpenSet open, EvalBatches batches_of) : context_(context) {
    const data::DataOptions& data = context.recipe().data;
    train_ = open(context, data.train);
    if (!data.eval.empty()) eval_ = batches_of(*open(context, data.eval), context.batches());
  }

  const data::RowSet& rows() const final { return *train_; }
  int64_t steps_per_epoch() final { return Stream(train_, context_.batches()).steps_per_epoch(); }

  void start(roles::Trainer& trainer, const LoopState& state) final {
    stream_ = std::make_unique<Stream>(train_, context_.batches(), state.cursor);
    objective_ = make_objective([this](int64_t) { return stream_->next(); }, trainer);
  }

  Objective& objective() final { return *objective_; }
  Evaluator evaluator() final {
    if (eval_.empty()) return {};
    return [this](int64_t step) { return evaluate(*objective_, step, eval_); };
  }

 protected:
  // The objective over the steps that `rows` yields, in their order. `trainer` outlives it.
  virtual std::unique_ptr<RowObjective> make_objective(std::function<Step(int64_t step)> rows,
                                                       roles::Trainer& trainer) = 0;
  // The row of an evaluation. Every rank calls it.
  virtual MetricsRow evaluate(RowObjective& objective, int64_t step,
                              const MicroBatches& batches) = 0;

  RunContext& context_;

 private:
  std::shared_ptr<const Set> train_;
  MicroBatches eval_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<RowObjective> objective_;
};

}  // namespace retort::recipes
