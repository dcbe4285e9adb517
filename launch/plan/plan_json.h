// A plan as JSON: what `retort plan --json` prints, and a run keeps as plan.json.
#pragma once

#include <string>

#include "launch/plan/plan.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// The bandwidth of a link between two hosts, unless the user says another number.
inline constexpr double kUsualLinkGbit = 10;

// One line.
std::string plan_json(const Plan& plan, double link_gbit);
// The plan of make_plan() as JSON.
std::string plan_json(const recipes::Recipe& recipe, double link_gbit = kUsualLinkGbit);

}  // namespace retort::launch
