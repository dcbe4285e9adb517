#include "recipes/rollout/rollout.h"

#include <utility>

#include "models/generation/completion_spans.h"

namespace retort::recipes {

RolloutSample sample_of(models::Completion completion) {
  RolloutSample sample;
  sample.prompt_ids = models::take_prompt(completion);
  if (!completion.episode.empty()) sample.episode = read_episode(completion.episode);
  sample.completion = std::move(completion);
  return sample;
}

}  // namespace retort::recipes
