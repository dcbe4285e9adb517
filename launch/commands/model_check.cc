#include "launch/commands/model_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "models/config.h"
#include "models/text/tokenizer.h"
#include "recipes/external_roles.h"
#include "recipes/registry.h"
#include "recipes/roles/serving_roles.h"

namespace retort::launch {
namespace {

// Whether the role is asked for scores of the student's ids.
bool scores(const recipes::Recipe& recipe, const std::string& role) {
  const std::vector<std::string> roles = recipes::reward_roles(recipe);
  return std::ranges::find(roles, role) != roles.end() && !recipes::is_judge(recipe, role);
}

// The cheapest mistake to find early: a model that numbers its tokens differently.
void check_tokenizers(const recipes::Recipe& recipe) {
  const auto others = recipes::serving_roles(recipe);
  if (others.empty()) return;
  const models::Tokenizer student =
      models::Tokenizer::load(recipe.roles.at(recipes::Recipe::kDrivingRole).model);
  for (const std::string& role : others) {
    if (recipes::is_judge(recipe, role)) continue;
    const std::string& folder = recipe.roles.at(role).model;
    const models::Tokenizer other = models::Tokenizer::load(folder);

    // What the student writes is scored by its ids, every one of them.
    if (scores(recipe, role) && other.vocab_size() < student.vocab_size())
      throw Error(ErrorCode::kInvalidArgument,
                  "role '" + role + "': the tokenizer of " + folder + " has " +
                      std::to_string(other.vocab_size()) + " ids, the student's " +
                      std::to_string(student.vocab_size()) +
                      "; what the student writes is scored by its ids: give the reward model the "
                      "same tokens (retort vocab add) and train it with them");

    // Distributions are compared in the ids that both have.
    const int64_t known = std::min(student.vocab_size(), other.vocab_size());
    const std::string mine = student.vocabulary_fingerprint(known),
                      theirs = other.vocabulary_fingerprint(known);
    if (mine != theirs)
      throw Error(
          ErrorCode::kInvalidArgument,
          "role '" + role + "': the tokenizer of " + folder +
              " differs from the student's in the " + std::to_string(known) +
              " ids that both know (fingerprints " + theirs.substr(0, 16) + " and " +
              mine.substr(0, 16) +
              "); distributions are compared id by id: use a model with the student's tokenizer");
  }
}

// A generator computes the student's weights by its own config.
void check_generator(const recipes::Recipe& recipe) {
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

// What scores has no head over the vocabulary.
void check_heads(const recipes::Recipe& recipe) {
  const bool trains_scores = recipes::recipe_type(recipe).score_labels(recipe) > 0;
  for (const auto& [name, role] : recipe.roles) {
    if (role.external || scores(recipe, name)) continue;
    if (name == recipes::Recipe::kDrivingRole && trains_scores) continue;
    if (!models::read_model_config(role.model).classifies()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "role '" + name + "': " + role.model +
                    " holds a sequence classifier, such as a reward model, which has no head over "
                    "the vocabulary; expected a language model");
  }
}

}  // namespace

void check_models(const recipes::Recipe& recipe) {
  check_heads(recipe);
  check_tokenizers(recipe);
  check_generator(recipe);
}

}  // namespace retort::launch
