#include "recipes/run/rank/sample_run.h"

#include <cstdint>
#include <utility>

#include "base/random.h"
#include "recipes/data/batches.h"
#include "recipes/run/loop/batch_objective.h"
#include "recipes/run/loop/evaluate.h"

namespace retort::recipes {
namespace {

// The key is made of the tokens, not of where they stand in the data, which may move before a run
// is resumed.
uint64_t noise_key(uint64_t seed, int64_t step, const data::Sample& sample) {
  constexpr uint64_t kNoise = 0x6e656674756e65;  // draws of other kinds have the same seed
  uint64_t key = random_bits(seed, kNoise, static_cast<uint64_t>(step), sample.input_ids.size());
  for (const int32_t id : sample.input_ids)
    key = random_bits(key, static_cast<uint64_t>(id));
  return key;
}

// Gives the steps of `source` the noise of train.neftune_noise_alpha in training's forward passes
// (models::EmbeddingNoise). A sample has other noise in every step, but the same for every layout,
// packing and number of micro-batches, and in a resumed run. alpha 0: `source` itself.
StepSource with_embedding_noise(StepSource source, double alpha, uint64_t seed) {
  if (alpha == 0) return source;
  return [source = std::move(source), alpha, seed](int64_t step) {
    data::BatchStream::Step drawn = source(step);
    for (data::MicroBatch& batch : drawn.micro_batches) {
      batch.tokens.noise.alpha = alpha;
      for (const data::Sample& sample : batch.samples)
        batch.tokens.noise.keys.push_back(noise_key(seed, step, sample));
    }
    return drawn;
  };
}

}  // namespace

SampleRun::SampleRun(RunContext& context, data::SampleRule rule, data::SampleRule evaluation_rule)
    : context_(context) {
  const data::DataOptions& data = context.recipe().data;
  train_ = open(data.train, std::move(rule));
  if (!data.eval.empty())
    eval_ = data::eval_batches(*open(data.eval, std::move(evaluation_rule)), context.batches());
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
                                                   static_cast<uint64_t>(recipe.seed)),
                              state.step);
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
