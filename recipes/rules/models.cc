#include "recipes/rules/models.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/config/config.h"
#include "models/lora/lora_config.h"
#include "models/parameters/placement.h"
#include "models/safetensors/model_folder.h"
#include "models/text/tokenizer.h"
#include "recipes/roles/external_roles.h"
#include "recipes/roles/serving_roles.h"
#include "recipes/type/registry.h"

namespace retort::recipes {
namespace {

// Checks that every role's model is there, and fits the role's layout and use.
class ModelFolderCheck {
 public:
  ModelFolderCheck(const Recipe& recipe, const RecipePlaces& places)
      : recipe_(recipe), places_(places) {}

  void run() const {
    for (const auto& [name, role] : recipe_.roles) {
      if (is_asked_in_words(recipe_, name) || role.environment) continue;
      KeyPath path{"roles", name, "model"};
      if (role.external) path = {"roles", name, "external", "tokenizer"};
      if (!std::filesystem::is_directory(role.model))
        places_.refuse(path, "'" + role.model +
                                 "' is not a folder; expected a Hugging Face model folder" +
                                 models::model_folder_hint(role.model));
      // An adapter's folder mostly has no config.json either, but the advice is another one.
      if (models::is_adapter_folder(role.model))
        places_.refuse(path, "'" + role.model +
                                 "' is a LoRA adapter; expected a whole model: merge it with "
                                 "`retort model merge`" +
                                 (name == Recipe::kDrivingRole
                                      ? ", or go on with it by roles.student.lora.adapter"
                                      : ""));
      if (!std::filesystem::is_regular_file(std::filesystem::path(role.model) / "config.json"))
        places_.refuse(path, "'" + role.model +
                                 "' has no config.json; expected a Hugging Face model folder" +
                                 models::model_folder_hint(role.model));
      check_classifier(name, role);
      if (role.world.tp * role.world.pp == 1) continue;
      const models::ModelConfig config = models::read_model_config(role.model);
      try {
        models::check_layout(role.world, config);
      } catch (const Error& error) {
        places_.refuse({"roles", name, "world"}, error.message());
      }
    }
  }

 private:
  // A role of ours that scores needs a model that does, with the labels that are asked for.
  void check_classifier(const std::string& name, const RoleOptions& role) const {
    if (role.external) return;
    for (size_t i = 0; i < recipe_.rewards.size(); ++i) {
      const rewards::RewardOptions& reward = recipe_.rewards[i];
      if (reward.role != name || reward.type != rewards::RewardType::kModel) continue;
      const models::ModelConfig config = models::read_model_config(role.model);
      if (!config.classifies())
        places_.refuse({"roles", name, "model"},
                       "'" + role.model +
                           "' is a language model, which scores nothing; expected a sequence "
                           "classifier, as recipe: reward_model saves, or an engine that scores "
                           "(`external`)");
      if (reward.label.value_or(0) >= config.classifier.num_labels)
        places_.refuse({"rewards", std::to_string(i), "label"},
                       "the model of '" + name + "' has " +
                           std::to_string(config.classifier.num_labels) +
                           " labels, counted from 0");
      if (config.max_position_embeddings < recipe_.data.max_length)
        places_.refuse({"roles", name, "model"},
                       "'" + role.model + "' scores at most " +
                           std::to_string(config.max_position_embeddings) +
                           " tokens (max_position_embeddings in its config.json), and what is "
                           "scored has up to data.max_length = " +
                           std::to_string(recipe_.data.max_length) +
                           "; lower that, or take another reward model");
    }
    // A student that begins as a classifier must have as many labels as the recipe trains.
    const int64_t labels = recipe_type(recipe_).score_labels(recipe_);
    if (name != Recipe::kDrivingRole || labels == 0) return;
    const models::ModelConfig config = models::read_model_config(role.model);
    if (config.classifies() && config.classifier.num_labels != labels)
      places_.refuse({"roles", name, "model"}, "'" + role.model + "' is a classifier of " +
                                                   std::to_string(config.classifier.num_labels) +
                                                   " labels, reward_model.num_labels is " +
                                                   std::to_string(labels));
  }

  const Recipe& recipe_;
  const RecipePlaces& places_;
};

// True if the role is asked for scores of the student's ids.
bool is_asked_for_scores(const Recipe& recipe, const std::string& role) {
  const std::vector<std::string> roles = reward_roles(recipe);
  return std::ranges::find(roles, role) != roles.end() && !is_judge(recipe, role);
}

// A model that numbers its tokens differently is the cheapest mistake to find early: nothing would
// fail, and every number would be wrong.
void check_tokenizers(const Recipe& recipe) {
  const auto others = serving_roles(recipe);
  if (others.empty()) return;
  const models::Tokenizer student =
      models::Tokenizer::load(recipe.roles.at(Recipe::kDrivingRole).model);
  for (const std::string& role : others) {
    if (is_judge(recipe, role) || recipe.is_environment(role)) continue;
    if (recipe_type(recipe).reads_by_own_tokenizer(recipe, role)) continue;
    const std::string& folder = recipe.roles.at(role).model;
    const models::Tokenizer other = models::Tokenizer::load(folder);

    // A reward model gets whatever ids the student writes, so it must know every one of them.
    if (is_asked_for_scores(recipe, role) && other.vocab_size() < student.vocab_size())
      throw Error(ErrorCode::kInvalidArgument,
                  "role '" + role + "': the tokenizer of " + folder + " has " +
                      std::to_string(other.vocab_size()) + " ids, the student's " +
                      std::to_string(student.vocab_size()) +
                      "; what the student writes is scored by its ids: give the reward model the "
                      "same tokens (retort vocab add) and train it with them");

    // Distributions are compared in the ids that both have, so only those must agree.
    const int64_t known = std::min(student.vocab_size(), other.vocab_size());
    const std::string mine = student.vocabulary_fingerprint(known),
                      theirs = other.vocabulary_fingerprint(known);
    if (mine != theirs)
      throw Error(ErrorCode::kInvalidArgument,
                  "role '" + role + "': the tokenizer of " + folder +
                      " differs from the student's in the " + std::to_string(known) +
                      " ids that both know (fingerprints " + theirs.substr(0, 16) + " and " +
                      mine.substr(0, 16) +
                      "); distributions are compared id by id: use a model with the student's "
                      "tokenizer (a teacher may have another one: distill.cross_tokenizer)");
  }
}

// A generator computes with the student's weights but by its own config, so the two configs must
// say the same function.
void check_generator_model(const Recipe& recipe) {
  if (!recipe.generation) return;
  const std::string& role = recipe.generation->role;
  const std::string& folder = recipe.roles.at(role).model;
  if (models::describe_function(models::read_model_config(folder)) ==
      models::describe_function(models::read_model_config(recipe.student().model)))
    return;
  throw Error(ErrorCode::kInvalidArgument,
              "role '" + role + "': the model of " + folder +
                  " differs from the student's in its shapes, or in config values that change the "
                  "function (rope_theta, rms_norm_eps, sliding_window, ...); the generator takes "
                  "over the student's weights: give both the same model");
}

// A sequence classifier has no head over the vocabulary, so it only serves where scores are asked
// for.
void check_heads(const Recipe& recipe) {
  const bool trains_scores = recipe_type(recipe).score_labels(recipe) > 0;
  for (const auto& [name, role] : recipe.roles) {
    if (role.external || role.environment || is_asked_for_scores(recipe, name)) continue;
    if (name == Recipe::kDrivingRole && trains_scores) continue;
    if (!models::read_model_config(role.model).classifies()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "role '" + name + "': " + role.model +
                    " holds a sequence classifier, such as a reward model, which has no head over "
                    "the vocabulary; expected a language model");
  }
}

}  // namespace

void check_model_folders(const Recipe& recipe, const RecipePlaces& places) {
  ModelFolderCheck(recipe, places).run();
}

void check_models(const Recipe& recipe) {
  check_heads(recipe);
  check_tokenizers(recipe);
  check_generator_model(recipe);
}

}  // namespace retort::recipes
