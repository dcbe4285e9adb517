// Roles that score completions with models of ours: what their processes make of the recipe, and
// the same without processes.
#pragma once

#include <memory>
#include <string>

#include "models/decoder/decoder.h"
#include "recipes/document/recipe.h"
#include "recipes/rewards/reward.h"
#include "roles/reward/judge_server.h"

namespace retort::recipes {

// The judge that the role's process is, of its model. `name`: "judge/0".
std::unique_ptr<roles::JudgeServer> make_judge(const Recipe& recipe, const std::string& role,
                                               const std::string& name, models::Decoder decoder);

// Answers in this process as the roles of a run do, in float32, for `retort check`. Loads a role's
// model when it is asked for. `recipe` must outlive what is returned.
rewards::ConnectRoles reward_roles_here(const Recipe& recipe);

}  // namespace retort::recipes
