#include "launch/run/resumed_recipe.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "launch/yaml/resolved_yaml.h"
#include "launch/yaml/tree.h"
#include "recipes/roles/adapter.h"
#include "recipes/type/registry.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

using Leaves = std::vector<std::pair<std::string, std::string>>;

// Turns a tree into one key and one value a leaf, so that two recipes are compared key by key.
void flatten(const YamlNode& node, const std::string& key, Leaves& leaves) {
  if (node.kind == YamlNode::Kind::kMap && !node.entries.empty()) {
    for (const YamlNode::Entry& entry : node.entries)
      flatten(entry.value, key.empty() ? entry.key : key + "." + entry.key, leaves);
    return;
  }
  if (node.kind == YamlNode::Kind::kList && !node.items.empty()) {
    for (size_t i = 0; i < node.items.size(); ++i)
      flatten(node.items[i], key + "[" + std::to_string(i) + "]", leaves);
    return;
  }
  std::string value = node.scalar;
  // The value of a variable is written nowhere: that there is one is all that is told.
  const bool is_variable = key.starts_with("roles.") && key.find(".env.") != std::string::npos;
  if (node.kind == YamlNode::Kind::kNull) value = is_variable ? "a value" : "null";
  if (node.kind == YamlNode::Kind::kMap) value = "{}";
  if (node.kind == YamlNode::Kind::kList) value = "[]";
  leaves.emplace_back(key, std::move(value));
}

Leaves leaves_of(const recipes::Recipe& recipe) {
  Leaves leaves;
  flatten(parse_yaml(resolved_yaml(recipe), "the resolved recipe"), "", leaves);
  return leaves;
}

// The two are one folder under another name, such as one that was moved and linked at its old
// place.
bool is_same_folder(const std::string& before, const std::string& now) {
  std::error_code missing;
  return fs::equivalent(before, now, missing) && !missing;
}

int64_t slots_of_step(const recipes::Recipe& recipe) {
  return recipe.train.gradient_accumulation_steps * recipe.student().world.dp;
}

bool is_weight_of_source(const std::string& key) {
  return key.starts_with("data.train[") && key.ends_with(".weight");
}

// Batches that were formed beforehand go on only as they were formed.
bool breaks_batches(const std::string& key, const recipes::Recipe& before,
                    const recipes::Recipe& now) {
  if (!recipes::recipe_type(now).forms_batches_by_length()) return false;
  if (!before.train.tokens_per_batch && !now.train.tokens_per_batch) return false;
  if (key == "train.tokens_per_batch") return true;
  const bool counts = key == "train.gradient_accumulation_steps" || key == "roles.student.world.dp";
  return counts && slots_of_step(before) != slots_of_step(now);
}

// The steps of one round of a recipe that draws its rows in rounds; nullopt: it does not.
std::optional<int64_t> steps_of_round(const recipes::Recipe& recipe) {
  if (!recipe.rejection_sampling || !recipe.train.max_steps) return std::nullopt;
  return *recipe.train.max_steps / recipe.rejection_sampling->rounds;
}

// Why a run cannot go on with another value; "": it can.
std::string why_kept(const ChangedKey& changed, const recipes::Recipe& before,
                     const recipes::Recipe& now) {
  const std::string& key = changed.key;
  if (key == "recipe") return "the checkpoint is of a run of that recipe";
  if (key == "seed") return "the order of the rows, and all that is drawn, follows from it";
  if (key == "data.shuffle" || key == "data.packing" || is_weight_of_source(key))
    return "the order of the rows follows from it, and the checkpoint says a place in it";
  if (breaks_batches(key, before, now))
    return "the batches of like lengths, in which the checkpoint says a place, follow from it";
  const bool shapes_rounds = key == "train.max_steps" || key == "rejection_sampling.rounds";
  if (shapes_rounds && steps_of_round(before) != steps_of_round(now))
    return "a round has max_steps / rounds steps, and the checkpoint says a place in one; more "
           "rounds of as many steps may follow";
  if (key == "roles.student.model" && !is_same_folder(changed.before, changed.now))
    return now.student().lora ? "the adapter of the checkpoint belongs to that model"
                              : "the weights are the checkpoint's; a folder that was moved may be "
                                "linked at its old place";
  // An adapter that a reference is compared with is known by its content, and the checkpoint says
  // whether there is an adapter at all. Only the other cases are decided here.
  const bool begins_with_one = before.student().lora && now.student().lora;
  if (key == "roles.student.lora.adapter" && begins_with_one &&
      !recipes::keeps_first_adapter(before) && !is_same_folder(changed.before, changed.now))
    return "the adapter is the checkpoint's, which began with that one";
  return "";
}

}  // namespace

std::string ChangedKey::text() const {
  return key + ": " + (before.empty() ? "none" : before) + " -> " + (now.empty() ? "none" : now);
}

std::vector<ChangedKey> changed_keys(const recipes::Recipe& before, const recipes::Recipe& now) {
  const Leaves was = leaves_of(before);
  const Leaves is = leaves_of(now);
  const std::map<std::string, std::string> old(was.begin(), was.end());
  const std::map<std::string, std::string> fresh(is.begin(), is.end());

  // Keys come in the order of the recipe of now, and those that only the other one has follow.
  std::vector<ChangedKey> changed;
  for (const auto& [key, value] : is) {
    const auto found = old.find(key);
    if (found == old.end())
      changed.push_back({.key = key, .before = "", .now = value});
    else if (found->second != value)
      changed.push_back({.key = key, .before = found->second, .now = value});
  }
  for (const auto& [key, value] : was)
    if (!fresh.contains(key)) changed.push_back({.key = key, .before = value, .now = ""});
  return changed;
}

std::vector<ChangedKey> applied_keys(const recipes::Recipe& before, const recipes::Recipe& now) {
  std::vector<ChangedKey> applied;
  // All keys that are kept are named in one error, so that a person restores them at once.
  std::string kept;
  for (ChangedKey& changed : changed_keys(before, now)) {
    const std::string why = why_kept(changed, before, now);
    if (why.empty())
      applied.push_back(std::move(changed));
    else
      kept += (kept.empty() ? "" : "; ") + changed.text() + " (" + why + ")";
  }
  if (!kept.empty())
    throw Error(ErrorCode::kInvalidArgument, "--resume: the run cannot go on with what changed: " +
                                                 kept + ". Restore it, or start a new run");
  return applied;
}

std::vector<std::string> changed_values(const RoleValues& before, const RoleValues& now) {
  std::vector<std::string> keys;
  for (const auto& [role, variables] : now) {
    const auto had = before.find(role);
    if (had == before.end()) continue;
    for (const auto& [variable, value] : variables)
      if (const auto old = had->second.find(variable);
          old != had->second.end() && old->second != value)
        keys.push_back("roles." + role + ".env." + variable);
  }
  return keys;
}

}  // namespace retort::launch
