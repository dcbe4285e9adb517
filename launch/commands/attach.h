// retort launch --attach: another launcher for a run whose own is gone.
#pragma once

#include <string>

namespace retort::launch {

// Takes over the run in this folder, whose processes go on without a launcher (launch.launcher_lost
// is continue): shows its progress, keeps status.json, restarts serving roles that are lost, and
// ends with the run's exit code, as the launcher before would have.
// Errors: kInvalidArgument for a run that ends with its launcher, has ended, or runs on another
// host; kUnavailable where a launcher keeps it.
int run_attach(const std::string& run_folder);

}  // namespace retort::launch
