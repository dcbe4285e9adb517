#include "recipes/rollout/rollout.h"

#include <utility>

#include "base/error.h"
#include "models/generation/completion_spans.h"
#include "recipes/data/completion_sample.h"

namespace retort::recipes {

RolloutSample sample_of(models::Completion completion) {
  RolloutSample sample;
  sample.prompt_ids = models::take_prompt(completion);
  sample.completion = std::move(completion);
  return sample;
}

data::Sample training_row(const data::PromptSample& prompt, const RolloutSample& sample) {
  const models::Completion& completion = sample.completion;
  return data::completion_sample(prompt, prompt_ids_of(prompt, sample), completion.token_ids,
                                 models::model_tokens(completion));
}

bool is_lost(const RolloutSample& sample) {
  if (!is_episode(sample)) return false;
  RETORT_CHECK(sample.episode) << "nobody has read the record of episode " << sample.sample_id;
  return sample.episode->outcome.is_lost();
}

void read_episodes(Rollout& rollout) {
  for (RolloutGroup& group : rollout.groups)
    for (RolloutSample& sample : group.samples)
      if (is_episode(sample) && !sample.episode)
        sample.episode = read_episode(sample.completion.episode);
}

}  // namespace retort::recipes
