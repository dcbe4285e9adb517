// The processes of one start of a run, as a backend has them.
#pragma once

#include <vector>

#include "launch/backends/rank_spec.h"
#include "launch/supervision/backend.h"
#include "launch/supervision/supervisor.h"
#include "recipes/document/recipe.h"

namespace retort::launch {

// Threads: one.
class StartProcesses {
 public:
  // Leaves no process but those that joined, which end by themselves.
  virtual ~StartProcesses() = default;
  // All processes of the start; called once. Each is one that the backend is to start, or one that
  // has joined and waits to be told.
  virtual std::vector<ProcessSpec> processes(const RunStart& start) = 0;
  // What starts those that have not joined.
  virtual Backend& backend() = 0;
  // Says where one is started: a host, what it listens on there, its share of the cores. By default
  // it is a child of this process.
  virtual void place(ProcessSpec&) const {}
  // Says where the processes of a replica are before they are started again, as
  // SupervisorOptions::place_again. By default they are where they were.
  virtual void place_again(const std::vector<ProcessSpec*>& /*replica*/) {}
};

// The processes of a start that has none which joined, each placed by `where`.
std::vector<ProcessSpec> placed_processes(const recipes::Recipe& recipe, const RunFolder& folder,
                                          const RunStart& start, const StartProcesses& where);

}  // namespace retort::launch
