// One start of a run, from the side of the process that keeps it: its folder, its store, what is
// shown and written of it, and its processes until all have ended.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "launch/supervision/run_folder.h"
#include "launch/supervision/supervisor.h"
#include "recipes/recipe.h"
#include "rpc/options.h"

namespace retort::launch {

// What the processes of one start have in common.
struct RunStart {
  std::string run;
  std::string secret;
  int64_t incarnation = 0;
  bool resume = false;
  std::string store_host;
  uint16_t store_port = 0;
  rpc::Encryption encryption = rpc::Encryption::kAuto;
};

struct StartOptions {
  const recipes::Recipe& recipe;
  RunFolderMode mode = RunFolderMode::kFresh;
  // How often the run may go on by itself after this start.
  int64_t restarts_left = 0;

  // Of the store: what its clients prove, and where it listens (RendezvousServer).
  std::string run, secret;
  rpc::Encryption encryption = rpc::Encryption::kAuto;
  std::string store_bind = "auto", store_ports = "0";

  // The processes of this start, asked for once the store is there.
  std::function<std::vector<ProcessSpec>(const RunFolder&, const RunStart&, SignalCatcher&)>
      processes;
  // What to print last of a run that did not fail; "" for nothing.
  std::function<std::string(const SupervisorResult&, const std::filesystem::path&)> last_line;
};

// How it ended.
struct StartEnd {
  int exit_code = 0;
  bool goes_on = false;
};

// To its end. Errors of RunFolder, RendezvousServer, Supervisor::run and `processes`.
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
