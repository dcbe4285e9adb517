#include "recipes/grpo/reference_questions.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <utility>

#include "recipes/data/completion_sample.h"
#include "recipes/run/rank/request_id.h"

namespace retort::recipes {
namespace {

// Marks the id of a request for a micro-batch that was asked for with other samples before.
constexpr uint64_t kAskedAgain = uint64_t{1} << 62;

}  // namespace

ReferenceQuestions::ReferenceQuestions(std::unique_ptr<Reference> reference, Options options)
    : reference_(std::move(reference)), options_(options) {}

uint64_t ReferenceQuestions::id(size_t index) const {
  const int64_t batches = options_.sizes.num_mini_batches * options_.sizes.micro_batches;
  return request_id(step_, index, static_cast<uint64_t>(batches), options_.sizes.dp_rank,
                    options_.sizes.dp_size);
}

void ReferenceQuestions::begin_round(int64_t step, int64_t num_prompts) {
  step_ = step;
  num_prompts_ = num_prompts;
  early_.clear();
}

void ReferenceQuestions::ask_early(const RolloutRequest& request, RolloutScorer& scorer) {
  // Where all ranks form the answer together, none may ask before the others do.
  if (reference_->on_all_ranks()) return;
  const auto generations = static_cast<size_t>(options_.sizes.num_generations);
  const auto batches = mini_batch_split(num_prompts_, options_.sizes);
  for (size_t index = early_.size(); index < batches.size(); ++index) {
    const std::vector<size_t>& places = batches[index];
    const auto scored = scorer.peek(request.number, places);
    if (!scored) return;

    // The batch must be the one that the objective will form: without unscorable samples, which
    // take part in nothing, and without those that have no loss.
    std::vector<data::Sample> samples;
    for (size_t i = 0; i < places.size(); ++i) {
      const ScoringQueue::Peek& sample = (*scored)[i];
      if (!sample.scorable || (options_.mask_truncated && sample.truncated)) continue;
      const data::PromptSample& prompt = request.prompts[places[i] / generations];
      samples.push_back(data::completion_sample(
          prompt, sample.prompt_ids.empty() ? prompt.prompt_ids : sample.prompt_ids,
          sample.token_ids, sample.is_target));
    }
    const data::MicroBatch batch = data::make_micro_batch(std::move(samples));
    Early early;
    if (batch.num_targets() > 0) {
      early.answer = reference_->ask(id(index), step_, batch.tokens, batch.predict_positions);
      early.input_ids = batch.tokens.input_ids;
      early.positions = batch.predict_positions;
    }
    early_.push_back(std::move(early));
  }
}

Reference::Pending ReferenceQuestions::ask(size_t index, const data::MicroBatch& batch) {
  if (batch.num_targets() == 0) return std::nullopt;
  if (index >= early_.size())
    return reference_->ask(id(index), step_, batch.tokens, batch.predict_positions);

  // Samples may have been drawn again since: then the early answer is of other tokens, and is asked
  // for anew.
  Early& early = early_[index];
  if (early.input_ids.defined() && at::equal(early.input_ids, batch.tokens.input_ids) &&
      at::equal(early.positions, batch.predict_positions))
    return std::move(early.answer);
  return reference_->ask(id(index) | kAskedAgain, step_, batch.tokens, batch.predict_positions);
}

}  // namespace retort::recipes
