#include "recipes/run/sample_run.h"

#include <utility>

#include "recipes/run/embedding_noise.h"
#include "recipes/run/evaluate.h"

namespace retort::recipes {

SampleRun::SampleRun(RunContext& context, data::SampleRule rule) : context_(context) {
  const data::DataOptions& data = context.recipe().data;
  train_ = open(data.train, std::move(rule));
  if (!data.eval.empty()) eval_ = data::eval_batches(*open(data.eval, {}), context.batches());
}

std::shared_ptr<data::Dataset> SampleRun::open(const std::vector<data::Source>& sources,
                                               data::SampleRule rule) const {
  return std::make_shared<data::Dataset>(sources, context_.recipe().data, context_.tokenizer,
                                         context_.chat, context_.cache(), std::move(rule));
}

int64_t SampleRun::steps_per_epoch() {
  return data::BatchStream(train_, context_.batches()).steps_per_epoch();
}

void SampleRun::start(roles::Trainer& trainer, const LoopState& state) {
  trainer_ = &trainer;
  stream_ = std::make_unique<data::BatchStream>(train_, context_.batches(), state.cursor);
  const Recipe& recipe = context_.recipe();
  objective_ = make_objective(with_embedding_noise([this](int64_t) { return stream_->next(); },
                                                   recipe.train.neftune_noise_alpha.value_or(0),
                                                   static_cast<uint64_t>(recipe.seed)));
}

Evaluator SampleRun::evaluator() {
  if (eval_.empty()) return {};
  return [this](int64_t step) {
    MetricsRow row = evaluation_row(step, evaluate(*trainer_, eval_, context_.world));
    add_to_evaluation(eval_, row);
    return row;
  };
}

void SampleRun::add_to_evaluation(const std::vector<data::MicroBatch>&, MetricsRow&) {}

}  // namespace retort::recipes
