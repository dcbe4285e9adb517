// retort launch: from a recipe file to the exit code of its run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace retort::recipes {
struct Recipe;
}  // namespace retort::recipes

namespace retort::launch {

struct SupervisorResult;

struct LaunchCommand {
  std::string recipe;
  std::vector<std::string> overrides;
  bool resume = false, overwrite = false;
  bool submit = false;     // leaves it to run_submit()
  bool submitted = false;  // by the script that run_submit() wrote
  bool dry_run = false;    // prints what a cluster is told, and starts nothing
  // `retort cache`: what the recipe's teacher says is written here, and nobody trains; "": a run
  std::string cache = {};
};

// Validates before anything starts, and then is the run's launcher (launch/run/run_to_end.h).
int run_launch(const LaunchCommand& command);

// The recipe, loaded and checked as a launcher does before anything starts; what a user should know
// of it goes to stderr.
recipes::Recipe load_for_launch(const LaunchCommand& command);

// --overwrite removes what a run left in its folder; nothing that this run is about to read may lie
// there. kInvalidArgument naming the key.
void refuse_to_overwrite_inputs(const recipes::Recipe& recipe);
// On stderr: a user who compares two runs must know which numbers may differ.
void note_engines(const recipes::Recipe& recipe);

// The last line of a run that did not fail: the command that goes on from its newest checkpoint,
// with recipe and overrides as they were typed; that there is no checkpoint; or where the result
// is. "" after a failure.
std::string last_line(const LaunchCommand& command, const SupervisorResult& result,
                      const std::filesystem::path& run_folder);

}  // namespace retort::launch
