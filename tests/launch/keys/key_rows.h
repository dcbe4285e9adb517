// A table of all keys of the recipe language and what each of them does: the recipe that it is
// changed in, and where the change shows. A key that does nothing in some recipe has one more row,
// which says that it is refused there.
#pragma once

#include <filesystem>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "recipes/document/recipe.h"

namespace retort::test {

// A recipe as the program has it, beside the models and data that it names.
struct Seen {
  const recipes::Recipe& recipe;
  std::filesystem::path folder;
};

struct KeyRow {
  std::string key;                // as in recipe_keys()
  const char* base = nullptr;     // a recipe of key_bases.h
  std::vector<std::string> with;  // overrides on top of it
  std::string change;             // the override of this key alone

  // One of the three:
  std::string (*observe)(const Seen&) = nullptr;  // another text for the changed recipe
  std::string refusal;                            // in the message about the changed recipe
  std::string test, text;  // a test that observes the key in a run or a part of one, and its words
};
std::ostream& operator<<(std::ostream& out, const KeyRow& row);

// Rows of the table. `change` is "key.path=value", as on the command line; FOLDER is the folder.
KeyRow acts(const char* base, std::string change, std::string (*observe)(const Seen&),
            std::vector<std::string> with = {});
KeyRow refused(const char* base, std::string change, std::string message,
               std::vector<std::string> with = {});
KeyRow in_run(std::string key, std::string test, std::string text);
// A test that observes keys of several parts.
inline constexpr const char* kOnPolicyRuns = "tests/recipes/runs/on_policy_run_test.cc";

// "data.train.0.path=x" -> "data.train[].path", "roles.student.model=x" -> "roles.<name>.model".
std::string key_of(const std::string& change);
// The path of every key, from the option structs themselves. A block is a key where it may be
// missing or stand several times: "distill", "roles.<name>", "data.train" and "data.train[].path".
std::set<std::string> recipe_keys();

// The table, in parts.
std::vector<KeyRow> run_rows();         // the keys above all blocks, roles, launch, rpc
std::vector<KeyRow> kubernetes_rows();  // launch.kubernetes, and what it asks of others
std::vector<KeyRow> data_rows();        // data
std::vector<KeyRow> train_rows();       // train
std::vector<KeyRow> loss_rows();        // distill, dpo, kto, reward_model
std::vector<KeyRow> generation_rows();  // generation, weight_sync, rewards
std::vector<KeyRow> episode_rows();     // environment, and roles that are environments
std::vector<KeyRow> policy_rows();      // grpo, rejection_sampling
std::vector<KeyRow> key_rows();         // all of them

}  // namespace retort::test
