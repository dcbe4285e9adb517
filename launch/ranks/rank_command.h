// retort role: one process of a run, started by the launcher.
#pragma once

#include <cstdint>
#include <string>

namespace retort::launch {

// On the command line only so that `ps` shows what a process is; what the launcher passes on stdin
// says the same and more.
struct RoleCommand {
  std::string run, role;
  int64_t rank = 0;
  std::string run_folder;
};

// Runs the role until it is done, told to stop (by the launcher, or SIGTERM), or the launcher is
// gone. Exit code: 0
// done or stopped with a saved checkpoint, else exit_code_for the error, which has gone to the log
// and to the launcher.
int run_role(const RoleCommand& command);

}  // namespace retort::launch
