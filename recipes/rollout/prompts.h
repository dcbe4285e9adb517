// The prompts of a recipe that draws their completions.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"
#include "recipes/data/prompt_dataset.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// `sources`: data.train or data.eval. A prompt that leaves no room for generation.max_new_tokens,
// or for an episode's environment.max_tokens, within data.max_length is a bad row. `cache`, and
// errors: as data::RowSet.
std::shared_ptr<data::PromptDataset> open_prompts(const Recipe& recipe,
                                                  const std::vector<data::Source>& sources,
                                                  const models::Tokenizer& tokenizer,
                                                  const models::ChatTemplate& chat,
                                                  const std::filesystem::path& cache);

}  // namespace retort::recipes
