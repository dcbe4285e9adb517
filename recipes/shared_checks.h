// Checks that several recipe types make.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recipes/recipe.h"
#include "recipes/recipe_places.h"

namespace retort::recipes {

// "; did you mean 'teacher'?" when a declared role is nearly called `word`, else "".
std::string nearest_role(const Recipe& recipe, const std::string& word);

// Refuses a role that is named at `path` but not declared under `roles:`.
void check_declared(const Recipe& recipe, const RecipePlaces& places, const KeyPath& path,
                    const std::string& role);

// A reference is declared where the loss needs one, and not named where it does not: `why_not`.
void check_reference(const Recipe& recipe, const RecipePlaces& places, const KeyPath& path,
                     const std::string& role, bool needed, const std::string& why_not);

// Whether `role` is the student as it was before its training (roles.student.lora): without its
// adapter, or with the one that it began with. It is asked in the student's own processes.
bool is_own_reference(const Recipe& recipe, const std::string& role);
// The role that is started for it: none, or itself.
std::vector<std::string> reference_roles(const Recipe& recipe, const std::string& role);
// Refuses what is of answers that come from elsewhere.
void check_own_reference(const Recipe& recipe, const RecipePlaces& places, const std::string& block,
                         const std::string& role, const std::string& cache, int64_t prefetch,
                         int64_t usual_prefetch);

// `what` ("pairs") are never packed, so the key would have no effect.
void check_no_packing(const Recipe& recipe, const RecipePlaces& places, const std::string& what);

// Rows are not cut into packs, for they are `what` ("pairs, whose completions are compared whole").
// Refuses data.truncation_mode: keep_end, where a cut row would be another one: `why`.
void check_keeps_start(const Recipe& recipe, const RecipePlaces& places, const std::string& why);
void check_no_wrapping(const Recipe& recipe, const RecipePlaces& places, const std::string& what);

// data.tokenized_cache has samples; this recipe reads `what`, which it cannot hold.
void check_no_tokenized_cache(const Recipe& recipe, const RecipePlaces& places,
                              const std::string& what);

// A step whose numbers are not finite cannot be left out where all of its rows share `what` ("z,
// which all rows share"): one row makes it not finite for all.
void check_no_skipped_steps(const Recipe& recipe, const RecipePlaces& places,
                            const std::string& what);

// Batches of pairs, each two sequences.
void check_pair_batches(const Recipe& recipe, const RecipePlaces& places);

// The recipe itself says which tokens are trained on: `what` ("completions of the generator").
void check_no_target_choice(const Recipe& recipe, const RecipePlaces& places,
                            const std::string& what);

// `generation:` and the role that it names.
// Roles that rewards name: declared, of their own, and asked for one thing.
void check_reward_roles(const Recipe& recipe, const RecipePlaces& places);

void check_generation(const Recipe& recipe, const RecipePlaces& places);

// Of a recipe that pushes the weights before each draw, with nothing in flight.
void check_draws_with_student_of_now(const Recipe& recipe, const RecipePlaces& places);

// Of a recipe that compares samples of one prompt.
void check_samples_differ(const Recipe& recipe, const RecipePlaces& places);

}  // namespace retort::recipes
