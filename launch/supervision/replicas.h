// The replicas of serving roles: one that is lost is started again, all of it.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "launch/supervision/supervisor.h"
#include "launch/supervision/watched_processes.h"

namespace retort::launch {

// What it is part of, which outlives it.
struct ReplicasOptions {
  const SupervisorOptions& run;
  SupervisorObserver& observer;
  WatchedProcesses& processes;
  SupervisorResult& result;  // its remarks
  // Whether the recipe is at work still, or saves: what is lost then is missed.
  std::function<bool()> is_under_way;
  std::function<void(ProcessFailure)> fail;  // of what is not started again
};

class Replicas {
 public:
  explicit Replicas(ReplicasOptions options) : options_(std::move(options)) {}

  // True when the process belongs to a replica that is started again: all of it, because its ranks
  // share a world. One that ends by itself before it ever served has a reason of its own, which
  // starting it again does not mend.
  bool restart(Watched& child, const ProcessFailure& how);
  // Starts the replicas whose processes have all ended and whose pause is over.
  void start_due();
  // A process that a stop signal holds cannot answer. One that serves and can be started again is
  // killed once its peers have given it up.
  void end_held();

 private:
  // What keeps a process from starting (no room for one, a log that cannot be opened) may pass: the
  // replica is lost once more, with those of its processes that have started.
  void start(const std::string& replica);
  // False when there is no place for it: it was given up, lost once more, or has failed.
  bool place(const std::vector<Watched*>& replica);
  bool others_live(const ProcessSpec& spec) const;
  void not_started(Watched& child, const Error& error);

  const ReplicasOptions options_;
  std::map<std::string, Deadline> to_restart_;  // those that were lost, and when they are started
  Deadline next_look_{Deadline::Clock::now()};  // for processes that are held
};

}  // namespace retort::launch
