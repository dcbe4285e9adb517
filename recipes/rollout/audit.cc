#include "recipes/rollout/audit.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/error.h"
#include "models/config/config.h"
#include "recipes/audit/audit.h"
#include "recipes/rollout/prompts.h"
#include "recipes/run/inputs/chat.h"
#include "recipes/run/rows/row_warnings.h"

namespace retort::recipes {
namespace {

void print_prompt(const data::PromptSample& prompt) {
  std::printf("--- %s: prompt %zu tokens\n%s\n", prompt.origin.c_str(), prompt.prompt_ids.size(),
              prompt.prompt_text.c_str());
  if (!prompt.reference.empty()) std::printf("reference: %s\n", prompt.reference.c_str());
}

struct Counts {
  int64_t prompts = 0, tokens = 0, longest = 0, references = 0;
  std::string longest_origin;

  void add(const data::PromptSample& prompt) {
    const auto length = static_cast<int64_t>(prompt.prompt_ids.size());
    ++prompts;
    tokens += length;
    if (length > longest) longest_origin = prompt.origin;
    longest = std::max(longest, length);
    references += !prompt.reference.empty();
  }
};

}  // namespace

void audit_prompts(const Recipe& recipe, int64_t num_prompts) {
  const std::string& model = recipe.student().model;
  const models::ChatTemplate chat = load_chat(recipe);
  const models::Tokenizer tokenizer = models::Tokenizer::load(model);
  print_template(chat);
  const auto dataset = open_prompts(recipe, recipe.data.train, tokenizer, chat, /*cache=*/"");
  Counts counts;
  for (int64_t row = 0; row < dataset->size(); ++row) {
    const auto prompt = dataset->get(row);
    if (!prompt) continue;
    if (counts.prompts < num_prompts) print_prompt(*prompt);
    counts.add(*prompt);
  }

  if (counts.prompts == 0)
    throw Error(ErrorCode::kInvalidArgument, "the training data has no usable prompt");
  std::printf(
      "--- all: %lld prompts, %lld with a reference; mean tokens %.1f, longest %lld; skipped "
      "%lld\n",
      static_cast<long long>(counts.prompts), static_cast<long long>(counts.references),
      static_cast<double>(counts.tokens) / static_cast<double>(counts.prompts),
      static_cast<long long>(counts.longest), static_cast<long long>(dataset->num_skipped()));
  std::printf("--- %lld completions of each are drawn, of at most %lld tokens\n",
              static_cast<long long>(recipe.generation->num_generations),
              static_cast<long long>(recipe.longest_completion()));
  const int64_t limit = models::read_model_config(model).max_position_embeddings;
  const auto beyond = beyond_positions(counts.longest + recipe.longest_completion(),
                                       counts.longest_origin + " with a completion", limit);
  if (beyond) std::printf("--- warning: %s\n", beyond->c_str());
}

}  // namespace retort::recipes
