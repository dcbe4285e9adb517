// The folder of a recipe's run, opened with what is known of the run before it starts.
#pragma once

#include "base/units.h"
#include "launch/run_folder/run_folder.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// The folder of the recipe's run: open_run_folder() but for the record of the recipe, which stays
// that of the start before.
RunFolder check_run_folder(const recipes::Recipe& recipe, RunFolderMode mode,
                           Duration lock_timeout = Duration(15'000),
                           const RunFolder::WhenLocked& when_locked = {});

// The folder of the recipe's run, with what is known of that before it starts. Of a run that goes
// on from a checkpoint what changed in the recipe is told. Errors of RunFolder; kInvalidArgument
// for a change that the checkpoint does not allow (applied_keys); kMismatch when a run would go on
// with another question to its judge. `when_locked`: as RunFolder has it; what the run needs to
// begin, such as ports, is asked for there, before the run that --overwrite replaces is removed.
RunFolder open_run_folder(const recipes::Recipe& recipe, RunFolderMode mode,
                          Duration lock_timeout = Duration(15'000),
                          const RunFolder::WhenLocked& when_locked = {});
// Writes what is known of the run into its folder, for its processes and for people.
void describe_run(const recipes::Recipe& recipe, const RunFolder& folder);

}  // namespace retort::launch
