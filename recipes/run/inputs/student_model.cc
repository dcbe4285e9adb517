#include "recipes/run/inputs/student_model.h"

#include <algorithm>

#include "models/text/tokenizer.h"
#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

// The padding is the tokenizer's, as TRL has it, else the config's, else the end token.
int64_t padding_id(const models::ModelConfig& config, const models::Tokenizer& tokenizer) {
  if (tokenizer.pad_id() >= 0) return tokenizer.pad_id();
  return config.pad_token_id >= 0 ? config.pad_token_id : tokenizer.eos_id();
}

}  // namespace

std::optional<models::ClassifierOptions> student_classifier(const Recipe& recipe) {
  const int64_t labels = recipe_type(recipe).score_labels(recipe);
  if (labels == 0) return std::nullopt;
  return classifier_options(recipe.student().model, labels, static_cast<uint64_t>(recipe.seed));
}

models::ClassifierOptions classifier_options(const std::string& folder, int64_t labels,
                                             uint64_t seed) {
  const models::ModelConfig config = models::read_model_config(folder);
  return {.num_labels = labels,
          .seed = seed,
          .pad_token_id = padding_id(config, models::Tokenizer::load(folder)),
          .padding_row = config.pad_token_id};
}

models::LoraConfig student_adapter(const Recipe& recipe) {
  models::LoraConfig lora = recipe.student().lora.value().config();
  const std::string head = "score";
  // The head that scores is trained as a whole, beside the adapter of the other layers.
  const bool scores = recipe_type(recipe).score_labels(recipe) > 0;
  if (scores && std::ranges::find(lora.modules_to_save, head) == lora.modules_to_save.end())
    lora.modules_to_save.push_back(head);
  return lora;
}

models::ModelConfig role_config(const Recipe& recipe, const std::string& role) {
  const models::ModelConfig config = models::read_model_config(recipe.roles.at(role).model);
  const int64_t labels =
      role == Recipe::kDrivingRole ? recipe_type(recipe).score_labels(recipe) : 0;
  if (labels == 0 || config.classifies()) return config;
  return models::as_classifier(config, labels, config.pad_token_id);
}

}  // namespace retort::recipes
