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

// What the processes of one start have in common.
struct RunStart {
  std::string run;
  std::string secret;
  int64_t incarnation = 0;
  bool resume = false;
  bool writes_cache = false;
  std::string store_host;
  uint16_t store_port = 0;
  rpc::Encryption encryption = rpc::Encryption::kAuto;
};

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
  Backend* backend = nullptr;  // SupervisorOptions::backend
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

// The folder of the recipe's run: open_run_folder() but for the record of the recipe, which stays
// that of the start before.
RunFolder check_run_folder(const recipes::Recipe& recipe, RunFolderMode mode,
                           Duration lock_timeout = Duration(15'000),
                           const RunFolder::WhenLocked& when_locked = {});

// The folder of the recipe's run, with what is known of that before it starts. Of a run that goes
// on from a checkpoint what changed in the recipe is told. Errors of RunFolder; kInvalidArgument
// for a change that the checkpoint does not allow (applied_keys); kMismatch when a run would go on
// with another question to its judge. `when_locked`: as RunFolder has it; what the run needs to
// begin, such as ports, is asked for there, before the run that --overwrite replaces is removed.
RunFolder open_run_folder(const recipes::Recipe& recipe, RunFolderMode mode,
                          Duration lock_timeout = Duration(15'000),
                          const RunFolder::WhenLocked& when_locked = {});
// Writes what is known of the run into its folder, for its processes and for people.
void describe_run(const recipes::Recipe& recipe, const RunFolder& folder);

// To its end. Errors of Supervisor::run and `processes`.
StartEnd run_once(const StartOptions& options, SignalCatcher& signals);

// What one rank is started with, but for what its role's processes do not share: threads.
ChildContext rank_context_of(const recipes::Recipe& recipe, const RunStart& start,
                             const std::string& role, int64_t rank);
// A child of this process for one rank: what it is called and told, and what is done when it is
// lost.
ProcessSpec child_spec(const recipes::Recipe& recipe, const RunFolder& folder,
                       ChildContext context);
// The arguments of `retort role` for it.
std::vector<std::string> role_arguments(const ChildContext& context,
                                        const std::filesystem::path& run_folder);

}  // namespace retort::launch
