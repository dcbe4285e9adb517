// One start of a run, from the side of the process that keeps it: what is shown and written of it,
// and its processes until all have ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launch/supervision/run_folder.h"
#include "launch/supervision/supervisor.h"
#include "recipes/recipe.h"
#include "rpc/rendezvous/rendezvous_access.h"

namespace retort::rpc {
class RendezvousServer;
}  // namespace retort::rpc

namespace retort::launch {

class Backend;
class HostPlaces;
struct RunStart;

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
  Backend* backend = nullptr;  // what starts its processes; null: they are children of this one
  // Where a replica goes whose host is lost; null: this host alone.
  HostPlaces* places = nullptr;

  // The processes of this start.
  std::function<std::vector<ProcessSpec>(const RunStart&)> processes;
  // What to print last of a run that did not fail; "" for nothing.
  std::function<std::string(const SupervisorResult&, const std::filesystem::path&)> last_line;
};

// How it ended.
struct StartEnd {
  int exit_code = 0;
  bool goes_on = false;
  bool lost_process = false;  // the cause of its failure is that nothing came from a process
  bool progressed = false;    // there is a newer checkpoint than that which it began at
};

// To its end. Errors of Supervisor::run and `processes`.
StartEnd run_once(const StartOptions& options, SignalCatcher& signals);

}  // namespace retort::launch
