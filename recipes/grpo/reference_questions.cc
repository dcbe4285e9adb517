#include "recipes/grpo/reference_questions.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <utility>

#include "recipes/data/completion_sample.h"
#include "recipes/run/request_id.h"

namespace retort::recipes {
namespace {

// Marks the id of a request for a micro-batch that was asked for with other samples before.
constexpr uint64_t kAskedAgain = uint64_t{1} << 62;

}  // namespace

ReferenceQuestions::ReferenceQuestions(std::unique_ptr<Reference> reference, Options options)
    : reference_(std::move(reference)), options_(options) {}

uint64_t ReferenceQuestions::id(size_t index) const {
  return request_id(step_, index, static_cast<uint64_t>(options_.micro_batches), options_.dp_rank,
                    options_.dp_size);
}

void ReferenceQuestions::begin_round(int64_t step) {
  step_ = step;
  early_.clear();
}

void ReferenceQuestions::ask_early(const RolloutRequest& request, RolloutScorer& scorer) {
  const auto rows = static_cast<size_t>(options_.rows_per_micro_batch);
  const auto generations = static_cast<size_t>(options_.num_generations);
  const size_t all = request.sample_ids.size();
  for (size_t index = early_.size(); index * rows < all; ++index) {
    const size_t first = index * rows;
    const size_t count = std::min(rows, all - first);
    const auto scored = scorer.peek(request.number, first, count);
    if (!scored) return;

    // An unscorable sample takes part in nothing.
    std::vector<data::Sample> samples;
    for (size_t i = 0; i < count; ++i)
      if ((*scored)[i].scorable)
        samples.push_back(data::completion_sample(request.prompts[(first + i) / generations],
                                                  (*scored)[i].token_ids));
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

  // Samples that were drawn again since then have other weights.
  Early& early = early_[index];
  if (early.input_ids.defined() && at::equal(early.input_ids, batch.tokens.input_ids) &&
      at::equal(early.positions, batch.predict_positions))
    return std::move(early.answer);
  return reference_->ask(id(index) | kAskedAgain, step_, batch.tokens, batch.predict_positions);
}

}  // namespace retort::recipes
