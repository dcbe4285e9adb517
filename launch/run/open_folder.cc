#include "launch/run/open_folder.h"

#include <filesystem>
#include <iostream>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "launch/document/recipe_file.h"
#include "launch/plan/plan_json.h"
#include "launch/run/resumed_recipe.h"
#include "launch/yaml/resolved_yaml.h"
#include "launch/yaml/role_values.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

// Each change to the recipe since the run was started last is refused, or told and applied; none is
// ignored. A recipe that this version cannot read any more is not compared.
void tell_changes(const std::string& before, const recipes::Recipe& recipe) {
  std::optional<recipes::Recipe> old;
  try {
    // Only the keys are compared: files that the old recipe names may be gone.
    old = parse_recipe(before, kResolvedRecipe,
                       {.cuda = true,
                        .check_files = false,
                        .check_inputs = false,
                        .is_launched = false,
                        .env_values = false});
  } catch (const Error& error) {
    std::cerr << "note: the recipe that the run had is not compared with this one: "
              << error.message() << "\n";
    return;
  }
  for (const ChangedKey& changed : applied_keys(*old, recipe))
    std::cerr << "note: changed, and applied from here on: " << changed.text() << "\n";
}

// Tells which values of roles.*.env are others now without showing any of them.
void tell_changed_values(const fs::path& run_folder, const recipes::Recipe& recipe) {
  RoleValues before;
  try {
    before = read_role_values(run_folder / kResolvedRecipe).value_or(RoleValues{});
  } catch (const Error& error) {
    std::cerr << "note: the values that roles.*.env had are not compared with these: "
              << error.message() << "\n";
  }
  for (const std::string& key : changed_values(before, role_values(recipe)))
    std::cerr << "note: changed, and applied from here on: " << key << ": another value\n";
}

// A judge's question belongs to the run: it is kept there, and a run goes on with the same one.
void keep_templates(const recipes::Recipe& recipe, const fs::path& run_folder) {
  for (size_t i = 0; i < recipe.rewards.size(); ++i) {
    const auto& file = recipe.rewards[i].template_file;
    if (!file) continue;
    const fs::path kept = run_folder / "templates" / (std::to_string(i) + ".jinja");
    const std::string text = read_file(*file);
    fs::create_directories(kept.parent_path());
    if (!fs::exists(kept)) write_file_atomically(kept, text);
    if (read_file(kept) != text)
      throw Error(ErrorCode::kMismatch,
                  "rewards[" + std::to_string(i) + "].template: '" + *file +
                      "' is not the one that the run began with, which is kept as " +
                      kept.string() + "; put it back, or begin a new run");
  }
}

}  // namespace

RunFolder check_run_folder(const recipes::Recipe& recipe, RunFolderMode mode, Duration lock_timeout,
                           const RunFolder::WhenLocked& when_locked) {
  const fs::path path = run_folder_of(recipe);
  const auto check = [&](const std::optional<std::string>& before) {
    if (before) {
      tell_changes(*before, recipe);
      tell_changed_values(path, recipe);
    }
    keep_templates(recipe, path);
  };
  return RunFolder(path, mode, lock_timeout, check, when_locked);
}

RunFolder open_run_folder(const recipes::Recipe& recipe, RunFolderMode mode, Duration lock_timeout,
                          const RunFolder::WhenLocked& when_locked) {
  const fs::path path = run_folder_of(recipe);
  RunFolder folder = check_run_folder(recipe, mode, lock_timeout, when_locked);
  // A recipe that is resumed has passed its check by now, so that its record may be replaced.
  describe_run(recipe, folder);
  // A fresh run begins to keep its templates here; of a resumed run they were compared before
  // anything was changed.
  keep_templates(recipe, path);
  return folder;
}

void describe_run(const recipes::Recipe& recipe, const RunFolder& folder) {
  write_role_values(folder.resolved_recipe(), role_values(recipe));
  folder.write_resolved_recipe(resolved_yaml(recipe));
  write_file_atomically(folder.path() / "plan.json", plan_json(recipe) + "\n");
}

}  // namespace retort::launch
