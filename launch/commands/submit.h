// retort launch --submit: a run as a job of Slurm.
#pragma once

#include <string>

#include "launch/backends/run_backend.h"
#include "launch/commands/launch.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// Makes the run's folder as its mode says, writes the batch
// script there and gives it to sbatch. The job goes on with what the folder holds. Prints the job's
// number, how to watch it and how to stop it. Errors of check_submit.
int run_submit(const LaunchCommand& command, const recipes::Recipe& recipe,
               const RunBackend& backend);

// The number of the job that sbatch names, from its output; kUnavailable where there is none.
std::string submitted_job(const std::string& output);

}  // namespace retort::launch
