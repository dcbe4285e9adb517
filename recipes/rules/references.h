// Rules of roles that other keys name, references among them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recipes/document/recipe_places.h"
#include "recipes/document/role_options.h"

namespace retort::recipes {

// "; did you mean 'teacher'?" when a declared role is nearly called `word`, else "".
std::string nearest_role(const Roles& roles, const std::string& word);

// Refuses a role that is named at `path` but not declared under `roles:`.
void check_declared(const Roles& roles, const RecipePlaces& places, const KeyPath& path,
                    const std::string& role);

// True if `role` is the student as it was before its training (roles.student.lora): without its
// adapter, or with the one that it began with. It is asked in the student's own processes.
bool is_own_reference(const Roles& roles, const std::string& role);
// The role that is started for it: none, or itself.
std::vector<std::string> reference_roles(const Roles& roles, const std::string& role);

// A reference is declared where the loss needs one, and not named where it does not: `why_not`.
void check_reference(const Roles& roles, const RecipePlaces& places, const KeyPath& path,
                     const std::string& role, bool needed, const std::string& why_not);
// Refuses what is of answers that come from elsewhere.
void check_own_reference(const Roles& roles, const RecipePlaces& places, const std::string& block,
                         const std::string& role, const std::string& cache, int64_t prefetch,
                         int64_t usual_prefetch);

}  // namespace retort::recipes
