#include "recipes/rollout/prompts.h"

namespace retort::recipes {

std::shared_ptr<data::PromptDataset> open_prompts(const Recipe& recipe,
                                                  const std::vector<data::Source>& sources,
                                                  const models::Tokenizer& tokenizer,
                                                  const models::ChatTemplate& chat,
                                                  const std::filesystem::path& cache) {
  data::DataOptions options = recipe.data;
  // Room for the completion.
  options.max_length = options.max_length - recipe.generation->max_new_tokens + 1;
  return std::make_shared<data::PromptDataset>(sources, options, tokenizer, chat, cache);
}

}  // namespace retort::recipes
