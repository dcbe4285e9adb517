#include "launch/join/become_rank.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/process/close_on_exec.h"
#include "base/process/exec_arguments.h"
#include "base/process/owned_fd.h"
#include "launch/backends/rank_spec.h"
#include "launch/backends/role_variables.h"
#include "launch/process/child_process.h"
#include "launch/run_folder/run_folder.h"

namespace retort::launch {

void become_rank(const ChildContext& context, const recipes::Recipe& recipe) {
  namespace fs = std::filesystem;
  const fs::path program = fs::read_symlink("/proc/self/exe");
  const fs::path run_folder = run_folder_of(recipe);
  std::vector<std::string> arguments = role_arguments(context, run_folder);
  arguments.insert(arguments.begin(), program.string());
  std::vector<std::string> environment =
      child_environment(context.threads, role_variables(recipe, recipe.roles.at(context.role)));

  // It keeps what a launcher's child has: its input and its output.
  const OwnedFd input = context_input(context);
  const bool kept = ::dup2(input.get(), STDIN_FILENO) == STDIN_FILENO;
  close_on_exec_from(STDERR_FILENO + 1);

  // Lines of the log that still wait would be lost with this program.
  drain_log();
  if (kept)
    ::execve(program.c_str(), exec_pointers(arguments).data(), exec_pointers(environment).data());
  throw Error(ErrorCode::kUnavailable, "cannot become the process of " + context.role + "/" +
                                           std::to_string(context.rank) + ": " +
                                           std::strerror(errno));
}

}  // namespace retort::launch
