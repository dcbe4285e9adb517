// What Slurm is told for a run: the arguments of srun for the processes of a role, and the batch
// script of a job. Pure functions.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/units.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// One step: all processes of a role.
struct StepText {
  std::string name = {};  // by which squeue finds it
  std::string role = {};
  int64_t tasks = 1;
  int64_t cpus_per_task = 1;
  int64_t most_nodes = 1;
  bool cuda = false;                      // a device for each task
  Duration start_timeout{60'000};         // until it has the nodes that it needs
  std::filesystem::path logs = {};        // <role>-<rank>.log there
  std::vector<std::string> command = {};  // of each task
};
std::vector<std::string> srun_arguments(const StepText& step);

// A job that a launcher is to run in.
struct BatchText {
  const recipes::Recipe& recipe;
  std::filesystem::path run_folder;
  std::filesystem::path recipe_file;  // what the job starts
  std::filesystem::path program;
};
// What `launch.slurm` asks for, and a launcher that goes on with the run in the folder, which has
// been made. How the job ends:
//
//   its time is nearly up     the launcher is asked to stop, and saves
//   somebody cancels it       likewise; the job is not queued again
//   the launcher ends with 4, after its time or because a process of the run was lost:
//                             queued again, with launch.slurm.requeue
//   a node is lost            Slurm itself queues it again, with launch.slurm.requeue
//
// Its exit code is the launcher's.
std::string batch_script(const BatchText& batch);

// How long before its end a job is told of that: its time to save, and some to end.
Duration warning_time(const recipes::LaunchOptions& launch);

// The exit code of a launcher in a submitted job when a process was lost and the job is to be
// queued again; its script alone sees it.
inline constexpr int kExitQueueAgain = 75;

}  // namespace retort::launch
