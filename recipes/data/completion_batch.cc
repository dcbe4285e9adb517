#include "recipes/data/completion_batch.h"

#include <utility>

#include "recipes/data/batches.h"
#include "recipes/data/completion_sample.h"
#include "recipes/data/detail/tensors.h"

namespace retort::data {

CompletionBatch make_completion_batch(std::vector<PromptedCompletion> completions) {
  std::vector<Sample> samples;
  std::vector<int64_t> sequence;
  for (const PromptedCompletion& one : completions) {
    sequence.resize(sequence.size() + one.completion_ids.size(),
                    static_cast<int64_t>(samples.size()));
    samples.push_back(completion_sample(one.prompt_ids, one.completion_ids));
  }

  MicroBatch laid_out = make_micro_batch(std::move(samples));
  return {.tokens = std::move(laid_out.tokens),
          .predict_positions = std::move(laid_out.predict_positions),
          .targets = std::move(laid_out.targets),
          .sequence_of_row = detail::to_tensor(sequence),
          .completions = std::move(completions)};
}

}  // namespace retort::data
