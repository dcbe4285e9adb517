#include "recipes/rollout/prompts.h"

namespace retort::recipes {

std::shared_ptr<data::PromptDataset> open_prompts(const Recipe& recipe,
                                                  const std::vector<data::Source>& sources,
                                                  const models::Tokenizer& tokenizer,
                                                  const models::ChatTemplate& chat,
                                                  const std::filesystem::path& cache) {
  return std::make_shared<data::PromptDataset>(sources, recipe.data, tokenizer, chat, cache,
                                               recipe.longest_completion(),
                                               /*for_episodes=*/recipe.environment.has_value());
}

}  // namespace retort::recipes
