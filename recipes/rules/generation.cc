#include "recipes/rules/generation.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

#include "base/error.h"
#include "models/config/config.h"
#include "models/generation/stop_text.h"
#include "models/text/tokenizer.h"
#include "recipes/roles/serving_roles.h"
#include "recipes/rules/references.h"

namespace retort::recipes {
namespace {

// A student's model without a tokenizer beside it is refused elsewhere.
void check_stop(const GenerationOptions& generation, const RoleOptions& student,
                const RecipePlaces& places) {
  const std::filesystem::path folder = student.model;
  if (generation.stop.empty() || !std::filesystem::exists(folder / "tokenizer.json")) return;
  try {
    models::stop_rule(models::Tokenizer::load(folder), generation.stop);
  } catch (const Error& error) {
    places.refuse({"generation", "stop"}, error.message(), error.code());
  }
}

}  // namespace

void check_generation(const Recipe& recipe, const RecipePlaces& places) {
  const std::string& role = recipe.generation->role;
  const KeyPath path{"generation", "role"};
  if (role == Recipe::kDrivingRole)
    places.refuse(path,
                  "the student trains and cannot generate at once; give the generator a role of "
                  "its own");
  check_declared(recipe.roles, places, path, role);
  auto frozen = frozen_roles(recipe);
  for (std::string& scores : reward_roles(recipe))
    frozen.push_back(std::move(scores));
  if (std::find(frozen.begin(), frozen.end(), role) != frozen.end())
    places.refuse(path,
                  "'" + role +
                      "' is frozen elsewhere in this recipe and cannot take over the student's "
                      "weights");

  if (recipe.roles.at(role).dtype != recipe.student().dtype)
    places.refuse(
        {"roles", role, "dtype"},
        "the generator takes over the student's weights and must have the student's dtype");
  if (recipe.generation->max_new_tokens >= recipe.data.max_length)
    places.refuse({"generation", "max_new_tokens"},
                  "leaves no room for a prompt in data.max_length = " +
                      std::to_string(recipe.data.max_length));

  if (recipe.weight_sync && recipe.weight_sync->bucket_bytes > recipe.rpc.max_message_bytes)
    places.refuse({"weight_sync", "bucket_bytes"},
                  "is above rpc.max_message_bytes, the largest message that is accepted");
  check_stop(*recipe.generation, recipe.student(), places);
  if (recipe.generation->eval_num_generations == 1) return;
  if (!recipe.grpo && !recipe.rejection_sampling && !recipe.environment)
    places.refuse({"generation", "eval_num_generations"},
                  "has no effect: nothing is drawn to evaluate this recipe");
  if (recipe.data.eval.empty())
    places.refuse({"generation", "eval_num_generations"}, "has no effect without data.eval");
}

void check_drawn_length(const Recipe& recipe, const RecipePlaces& places) {
  if (!recipe.generation) return;
  if (recipe.distill && recipe.distill->lmbda == 0) return;
  if (!recipe.roles.contains(recipe.generation->role)) return;
  const RoleOptions& generator = recipe.roles.at(recipe.generation->role);
  if (generator.external) return;

  const models::ModelConfig config = models::read_model_config(generator.model);
  const int64_t new_tokens = recipe.longest_completion();
  const KeyPath path = recipe.environment ? KeyPath{"environment", "max_tokens"}
                                          : KeyPath{"generation", "max_new_tokens"};
  const auto check = [&](const models::Rope& rope) {
    const int64_t limit = rope.fixed_length();
    if (limit == 0 || new_tokens < limit) return;
    places.refuse(path, "a completion of " + std::to_string(new_tokens) +
                            " tokens has no prompt before it, and above " + std::to_string(limit) +
                            " the rope type '" + rope.type + "' of " + generator.model +
                            " rotates all of a sequence otherwise than the keys that are in the "
                            "generator's cache by then; write " +
                            std::to_string(limit - 1) +
                            " or less, and as much less as the longest prompt has tokens");
  };
  check(config.rope);
  if (config.sliding_rope) check(*config.sliding_rope);
}

void check_draws_with_student_of_now(const WeightSyncOptions& weight_sync,
                                     const RecipePlaces& places) {
  if (weight_sync.every_steps != 1)
    places.refuse({"weight_sync", "every_steps"},
                  "is for grpo; this recipe always draws with the student of now");
  if (weight_sync.in_flight != InFlight::kFinish)
    places.refuse({"weight_sync", "in_flight"},
                  "has no effect: nothing is in flight when this recipe pushes weights; remove it");
}

void check_samples_differ(const GenerationOptions& generation, const RecipePlaces& places) {
  if (generation.sampling.temperature == 0)
    places.refuse({"generation", "temperature"}, "must be above 0: greedy samples are all equal");
}

}  // namespace retort::recipes
