// The rules of the recipe language: what can only be seen by looking at several keys, or outside
// the recipe. A file a block, whose functions take the block, what it is compared with, and the
// places to complain at; this is the list of them. What one key may be is validate() of its option
// struct; a recipe type's own rules are RecipeType::check.
#pragma once

#include "recipes/document/recipe.h"
#include "recipes/document/recipe_places.h"
#include "recipes/rules/launcher.h"

namespace retort::recipes {

// Before anything is checked (resolve.cc): gives each key that is not written what the others, the
// recipe's type and the backend call for. A recipe that has been resolved stays as it is. Refuses
// what is written and cannot hold then, with its place.
void resolve_recipe(Recipe& recipe, const RecipePlaces& places);

struct RuleOptions {
  bool has_cuda = false;     // the CUDA module is there, or nothing is to be computed
  bool check_files = true;   // models and data must exist
  bool check_inputs = true;  // and are opened, as RecipeType::check_inputs says
  bool is_launched = true;   // by retort launch, which knows where each process of the run is
};

// Checks a recipe that has been resolved, whatever its type; the type's own rules are part of it.
// Of several mistakes the one whose rule is listed first is told. kInvalidArgument with file:line,
// kUnavailable for a device that this build or machine lacks.
void check_rules(const Recipe& recipe, const RecipePlaces& places, const Launcher& launcher,
                 const RuleOptions& options);

}  // namespace retort::recipes
