// A small environment for whole runs: a program that answers each turn of the model as a user
// would, as a function of its seed and of what was said.
#pragma once

#include <string>
#include <vector>

#include "tests/recipes/run_support/on_policy_support.h"

namespace retort::test {

// Writes model/, a golden one whose template knows calls of tools, environment.py and prompts.jsonl
// with ten rows.
void write_environment(const fs::path& folder);

// Arguments of `retort` for a run in `folder` of this recipe with the environment whose `files` are
// those: its model and rows, turns of 5 tokens, samples that are saved. `settings` come last.
std::vector<std::string> launch_with_environment(const fs::path& files, const fs::path& folder,
                                                 OnPolicyRecipe recipe,
                                                 const std::vector<std::string>& settings = {});

// Of a saved sample or a kept row: of each token behind the prompt, whether it is the model's, as
// its spans say. The test fails unless turns alternate.
std::vector<bool> own_tokens(const nlohmann::json& row);

}  // namespace retort::test
