// What changed in a recipe whose run goes on, so that nothing of it is ignored silently.
#pragma once

#include <string>
#include <vector>

#include "launch/yaml/role_values.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// A key of the resolved recipes that differs: "train.max_steps", "100", "200". "" for one that only
// the other recipe has.
struct ChangedKey {
  std::string key, before, now;

  // "train.max_steps: 100 -> 200".
  std::string text() const;
};

// The keys that differ, in the order of the recipes' fields.
std::vector<ChangedKey> changed_keys(const recipes::Recipe& before, const recipes::Recipe& now);

// Those of a run that goes on from a checkpoint, all of which it can apply from there on.
// kInvalidArgument naming the keys that the checkpoint decides: the recipe, the seed, the model or
// adapter that the run began with, and what the order of its rows follows from. Rows, their shape
// and roles.student.lora are compared by the student.
std::vector<ChangedKey> applied_keys(const recipes::Recipe& before, const recipes::Recipe& now);

// The keys of variables that both have, with values that differ: "roles.student.env.HF_TOKEN".
std::vector<std::string> changed_values(const RoleValues& before, const RoleValues& now);

}  // namespace retort::launch
