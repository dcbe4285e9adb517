// The hosts of a run that is launched by ssh.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "launch/process/signal_catcher.h"
#include "launch/ssh/ssh_backend.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// Connects to the hosts of `launch.hosts`, which must read `mark` in the run's folder
// (run_mark.h). Errors of SshBackend.
std::unique_ptr<SshBackend> connect_hosts(const recipes::Recipe& recipe,
                                          const std::filesystem::path& run_folder,
                                          const std::string& mark, HostsWanted wanted,
                                          const SignalCatcher& signals);
// The logs of what they and ssh say.
std::vector<std::filesystem::path> logs_of_hosts(const recipes::Recipe& recipe,
                                                 const std::filesystem::path& run_folder);
// The files in the run's folder that they then use, the mark among them; relative to it.
std::set<std::filesystem::path> files_of_hosts(const recipes::Recipe& recipe);

// Where the run's store listens: where the recipe says, or else where the hosts reach this one.
// `hosts`: null where the run is on this one alone.
std::string store_bind(const recipes::Recipe& recipe, const SshBackend* hosts);

}  // namespace retort::launch
