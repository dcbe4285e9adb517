// Roles that an inference engine of others plays: what follows from `external`, and what cannot be.
#pragma once

#include <string>
#include <vector>

#include "engines/contract.h"
#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// Before anything is checked: a role with `external` gets the tokenizer's folder as its model and a
// replica for each address. Refuses what says otherwise.
void resolve_external_roles(Recipe& recipe, const RecipePlaces& places);
// grpo.sampling_correction: auto becomes what the generator calls for.
void resolve_sampling_correction(Recipe& recipe);
// What no engine of this kind can do in this recipe.
void check_external_roles(const Recipe& recipe, const RecipePlaces& places);

// What an external role is needed for: what its engine must have been found to give.
engines::Needs engine_needs(const Recipe& recipe, const std::string& role);

// It is asked in words: it has no tokenizer here, and no ids.
bool is_asked_in_words(const Recipe& recipe, const std::string& role);

// Roles whose answers another run does not get again: engines compute them in whatever batches.
std::vector<std::string> roles_of_engines(const Recipe& recipe);

// How long a role may take until it serves: launch.load_timeout, or what its engine is given.
Duration load_timeout_of(const Recipe& recipe, const std::string& role);
// Of all roles that serve.
Duration longest_load_timeout(const Recipe& recipe);
// How long a role may work on a request: rpc.timeout, or what its engine is given.
Duration longest_answer(const Recipe& recipe, const std::string& role);
// Of all frozen roles.
Duration longest_answer(const Recipe& recipe);

}  // namespace retort::recipes
