// Roles that an inference engine of others plays: what follows from `external`.
#pragma once

#include <string>
#include <vector>

#include "base/units.h"
#include "engines/contract/contract.h"
#include "recipes/document/recipe.h"

namespace retort::recipes {

// What an external role is needed for: what its engine must have been found to give.
engines::Needs engine_needs(const Recipe& recipe, const std::string& role);

// It is asked in words: it has no tokenizer here, and no ids.
bool is_asked_in_words(const Recipe& recipe, const std::string& role);

// Roles whose answers another run does not get again: engines compute them in whatever batches.
std::vector<std::string> roles_of_engines(const Recipe& recipe);
// Another run of the recipe gives the same numbers: no engine of others and no environment, which
// may answer as it likes, has a part in them.
bool is_repeatable(const Recipe& recipe);

// How long a role may take until it serves: launch.load_timeout, or what its engine or environment
// is given.
Duration load_timeout_of(const Recipe& recipe, const std::string& role);
// Of all roles that serve.
Duration longest_load_timeout(const Recipe& recipe);
// How long a role may work on a request: rpc.timeout, or what its engine is given.
Duration longest_answer(const Recipe& recipe, const std::string& role);
// Of all frozen roles.
Duration longest_answer(const Recipe& recipe);

}  // namespace retort::recipes
