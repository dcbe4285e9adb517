// The hosts of a run that is launched by ssh.
#pragma once

#include <memory>
#include <string>

#include "launch/backends/ssh_backend.h"
#include "launch/supervision/run_folder.h"
#include "recipes/recipe.h"

namespace retort::launch {

// Connects to the hosts of `launch.hosts`, which must read `mark` in the run's folder
// (run_mark.h). Errors of SshBackend.
std::unique_ptr<SshBackend> connect_hosts(const recipes::Recipe& recipe, const RunFolder& folder,
                                          const std::string& mark, HostsWanted wanted,
                                          const SignalCatcher& signals);

// Where the run's store listens: where the recipe says, or else where the hosts reach this one.
// `hosts`: null where the run is on this one alone.
std::string store_bind(const recipes::Recipe& recipe, const SshBackend* hosts);

}  // namespace retort::launch
