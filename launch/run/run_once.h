// One start of a run, from the side of the process that keeps it: what is shown and written of it,
// and its processes until all have ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "launch/backends/run_backend.h"
#include "launch/backends/start_processes.h"
#include "launch/process/signal_catcher.h"
#include "launch/run_folder/run_folder.h"
#include "launch/supervision/supervisor.h"
#include "recipes/document/recipe.h"
#include "rpc/launcher_port/rendezvous_access.h"

namespace retort::rpc {
class RendezvousServer;
}  // namespace retort::rpc

namespace retort::launch {

// Whoever keeps the run makes its folder and its store, in the order that suits it, and has them
// until the start has ended.
struct StartOptions {
  const recipes::Recipe& recipe;
  const RunFolder& folder;
  rpc::RendezvousServer& store;
  rpc::RendezvousAccess access;  // what the clients of the store prove
  bool resume = false;
  bool writes_cache = false;  // `retort cache`
  // Its processes live: this start is theirs, and they know where it began.
  bool attached = false;
  // How often the run may go on by itself after this start.
  int64_t restarts_left = 0;
  StartProcesses& processes;
  // What to print last of a run that did not fail; "" for nothing.
  std::function<std::string(const SupervisorResult&, const std::filesystem::path&)> last_line;
};

// Runs the start to its end. Errors of Supervisor::run and StartProcesses.
StartEnd run_once(const StartOptions& options, SignalCatcher& signals);

}  // namespace retort::launch
