#include "recipes/grpo/micro_batch.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "base/error.h"
#include "base/sizes.h"
#include "models/generation/completion_spans.h"
#include "models/ops/shared_prefixes.h"

namespace retort::recipes {

void UncomputedSamples::add(const data::PromptSample& prompt, const RolloutSample& sample) {
  samples += 1;
  rows += models::num_model_tokens(sample.completion);
  tokens += to_int64(sample.completion.token_ids.size()) +
            to_int64(prompt_ids_of(prompt, sample).size());
}

void OpenGrpoMicroBatch::add(const data::PromptSample& prompt, const RolloutSample& sample,
                             float advantage, int64_t place) {
  const models::Completion& completion = sample.completion;
  if (completion.sampling_logps.size() != completion.token_ids.size())
    throw Error(ErrorCode::kMismatch,
                "the generator does not say how probable the tokens were that it drew, which "
                "grpo compares with");
  // What an environment said is read by the student, but no target.
  data::Sample row = training_row(prompt, sample);
  const size_t begin = row.input_ids.size() - completion.token_ids.size();
  for (size_t i = 0; i < completion.token_ids.size(); ++i) {
    if (!row.is_target[begin + i]) continue;
    sequences_.push_back(to_int64(samples_.size()));
    logps_.push_back(completion.sampling_logps[i]);
  }
  advantages_.push_back(advantage);
  places_.push_back(place);
  samples_.push_back(std::move(row));
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
