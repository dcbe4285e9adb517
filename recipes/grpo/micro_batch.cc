#include "recipes/grpo/micro_batch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "base/error.h"
#include "base/sizes.h"
#include "models/ops/shared_prefixes.h"
#include "recipes/data/completion_sample.h"

namespace retort::recipes {

void UncomputedSamples::add(const data::PromptSample& prompt, const RolloutSample& sample) {
  const int64_t length = to_int64(sample.completion.token_ids.size());
  samples += 1;
  rows += length;
  tokens += length + to_int64(prompt.prompt_ids.size());
}

void OpenGrpoMicroBatch::add(const data::PromptSample& prompt, const RolloutSample& sample,
                             float advantage, int64_t place) {
  const models::Completion& completion = sample.completion;
  if (completion.sampling_logps.size() != completion.token_ids.size())
    throw Error(ErrorCode::kMismatch,
                "the generator does not say how probable the tokens were that it drew, which "
                "grpo compares with");
  sequences_.insert(sequences_.end(), completion.token_ids.size(), to_int64(samples_.size()));
  logps_.insert(logps_.end(), completion.sampling_logps.begin(), completion.sampling_logps.end());
  advantages_.push_back(advantage);
  places_.push_back(place);
  samples_.push_back(data::completion_sample(prompt, completion.token_ids));
}

GrpoMicroBatch OpenGrpoMicroBatch::close(bool share) && {
  GrpoMicroBatch batch;
  batch.batch = data::make_micro_batch(std::move(samples_));
  batch.left_out = left_out_;
  batch.masked = masked_;
  batch.places = std::move(places_);
  batch.sequence_of_row = at::tensor(sequences_, at::kLong);
  batch.advantages = at::tensor(advantages_, at::kFloat);
  batch.generator_logps = at::tensor(logps_, at::kFloat);
  RETORT_CHECK(batch.batch.num_targets() == batch.sequence_of_row.numel())
      << "completion tokens and target rows differ";

  // A batch that shares computes the prompt of a group once; the completions behind it fork from
  // there.
  batch.tokens = batch.batch.tokens;
  batch.tokens.wanted = batch.batch.predict_positions;
  if (!share) return batch;
  models::SharedPrefixes shared = models::share_prefixes(batch.batch.tokens);
  batch.tokens = std::move(shared.tokens);
  batch.tokens.wanted = models::rows_at(shared.rows, batch.batch.predict_positions);
  return batch;
}

}  // namespace retort::recipes
