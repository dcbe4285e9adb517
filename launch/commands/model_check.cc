#include "launch/commands/model_check.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "models/config.h"
#include "models/text/tokenizer.h"
#include "recipes/external_roles.h"
#include "recipes/registry.h"

namespace retort::launch {
namespace {

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

// Losses and payloads form logits from a head alone; what caps them is not computed there.
void check_logits(const recipes::Recipe& recipe) {
  for (const auto& [role, options] : recipe.roles) {
    if (options.external || options.model.empty()) continue;
    if (models::read_model_config(options.model).final_logit_softcapping == 0) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        "role '" + role + "': the logits of " + options.model +
            " are capped (final_logit_softcapping in its config.json), which recipes do not "
            "compute: use a model without it, as Gemma 3");
  }
}

}  // namespace

void check_models(const recipes::Recipe& recipe) {
  check_logits(recipe);
  check_tokenizers(recipe);
  check_generator(recipe);
  recipes::recipe_type(recipe).check_inputs(recipe);
}

}  // namespace retort::launch
