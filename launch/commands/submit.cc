#include "launch/commands/submit.h"

#include <cstdio>
#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "launch/run/open_folder.h"
#include "launch/run_folder/run_folder.h"
#include "launch/slurm/command.h"
#include "launch/slurm/texts.h"
#include "launch/yaml/resolved_yaml.h"
#include "launch/yaml/role_values.h"

namespace retort::launch {
namespace fs = std::filesystem;
namespace {

constexpr const char* kBatchScript = "slurm.sh";

// Decides what the folder holds and writes the job's script into it. The lock is given up at the
// end, because it is the job's from now on.
fs::path make_batch_script(const recipes::Recipe& recipe, RunFolderMode mode) {
  const bool goes_on = mode == RunFolderMode::kResume;
  const RunFolder folder = goes_on ? check_run_folder(recipe, mode) : open_run_folder(recipe, mode);
  const fs::path submitted = folder.path() / kSubmittedRecipe;
  write_role_values(submitted, role_values(recipe));
  write_file_atomically(submitted, resolved_yaml(recipe));
  fs::path script = folder.path() / kBatchScript;
  write_file_atomically(script, batch_script({.recipe = recipe,
                                              .run_folder = folder.path(),
                                              .recipe_file = submitted,
                                              .program = fs::read_symlink("/proc/self/exe")}));
  return script;
}

void print_job(const std::string& job, const fs::path& folder) {
  const std::string run = folder.string();
  std::printf(
      "submitted job %s: %s\n"
      "watch it:  squeue -j %s; retort status %s --watch; %s/slurm-%s.log\n"
      "stop it:   scancel %s            (saves a checkpoint first)\n",
      job.c_str(), run.c_str(), job.c_str(), run.c_str(), run.c_str(), job.c_str(), job.c_str());
}

}  // namespace

std::string submitted_job(const std::string& output) {
  // sbatch says "17" or "17;cluster", with warnings before it.
  std::istringstream lines(output);
  std::string job;
  for (std::string line; std::getline(lines, line);) {
    const size_t end = line.find_first_not_of("0123456789");
    const bool is_number =
        end != 0 && !line.empty() && (end == std::string::npos || line[end] == ';');
    if (is_number) job = line.substr(0, end);
  }
  if (job.empty())
    throw Error(ErrorCode::kUnavailable, "sbatch did not say the number of the job: " + output);
  return job;
}

int run_submit(const LaunchCommand& command, const recipes::Recipe& recipe,
               const RunBackend& backend) {
  backend.check_submit();
  const RunFolderMode mode = run_folder_mode(command.resume, command.overwrite);
  const fs::path script = make_batch_script(recipe, mode);
  std::string said;
  try {
    said = ask_slurm("sbatch", {"--parsable", script.string()});
  } catch (const Error& error) {
    // A folder that was made for a job that there is not is in nobody's way and goes. Where nobody
    // knows whether sbatch has queued the job, it keeps its folder.
    const bool is_known = error.code() != ErrorCode::kTimeout;
    if (is_known && mode == RunFolderMode::kFresh)
      RunFolder(script.parent_path(), RunFolderMode::kOverwrite);
    throw;
  }
  print_job(submitted_job(said), script.parent_path());
  return 0;
}

}  // namespace retort::launch
