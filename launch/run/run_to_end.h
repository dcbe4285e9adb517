// A run from its first start to the exit code of its last, on whatever backend.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "launch/backends/run_backend.h"
#include "launch/process/signal_catcher.h"
#include "launch/run_folder/run_folder.h"
#include "launch/supervision/supervisor.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

struct WholeRun {
  const recipes::Recipe& recipe;
  RunBackend& backend;
  SignalCatcher& signals;
  bool writes_cache = false;  // `retort cache`
  // As StartOptions::last_line.
  std::function<std::string(const SupervisorResult&, const std::filesystem::path&)> last_line;
};

// One start of it.
struct StartHow {
  RunFolderMode mode = RunFolderMode::kFresh;
  int64_t restarts_left = 0;
  bool by_itself = false;  // nobody asked for it: the one before has failed
};

// One start of the run, to its end: its folder, its hosts, its store and its processes, none of
// which is left. Errors of open_run_folder, RunBackend, serve_store and run_once.
StartEnd start_run(const WholeRun& run, const StartHow& how);

// Makes the starts that follow by themselves after one that ended like this (launch.max_restarts),
// and returns the exit code of the last.
int go_on(const WholeRun& run, StartEnd end);

}  // namespace retort::launch
