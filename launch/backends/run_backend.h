// What the values of launch.backend do differently at a run's start and end: where its store
// listens, what its processes are started by, and what follows when they have ended.
//
//   launch.backend  class                 the processes are
//   local           LocalRunBackend       children of the launcher
//   ssh             SshRunBackend         children of `retort host` on each of launch.hosts
//   slurm           SlurmRunBackend       tasks of a job's steps, which join
//   kubernetes      KubernetesRunBackend  pods, which join: a launcher only prints what they are
//
// The order in which a launcher calls them (launch/run/run_to_end.cc):
//
//   check               before anything is made or removed
//   new_access          of each start
//   begin               in the folder that is the run's and in which nothing has been changed; or
//                       when that has the recipe (begins_in_folder)
//   Start::recipe       what the hosts that are there allow
//   Start::bind         then the store serves
//   Start::enter        then the processes are started, or join, and are supervised
//   after_end           when they have ended
//   ~StartProcesses     while the store still serves
//   ~Start              then the folder is free for others
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "launch/backends/start_processes.h"
#include "launch/process/signal_catcher.h"
#include "launch/run_folder/run_folder.h"
#include "launch/status/run_status.h"
#include "recipes/document/recipe.h"
#include "rpc/launcher_port/rendezvous_access.h"

namespace retort::launch {

// How one start of a run ended.
struct StartEnd {
  int exit_code = 0;
  bool goes_on = false;
  bool lost_process = false;  // the cause of its failure is that nothing came from a process
  bool progressed = false;    // there is a newer checkpoint than that which it began at
};

// How a start begins.
struct Beginning {
  bool by_itself = false;  // nobody asked for it: the one before has failed
  // An earlier run is still in the folder, and is removed when this one has begun.
  bool replaces = false;
};

struct RunBackendOptions {
  const recipes::Recipe& recipe;  // outlives the backend
  std::string recipe_file;        // as it was typed
  bool submitted = false;         // the launcher is that of a job which `--submit` has queued
};

// Threads: one.
class RunBackend {
 public:
  // One start of the run, from when its hosts answer until nothing of it is left there.
  class Start {
   public:
    virtual ~Start() = default;
    // The run's, but for what hosts that are lost leave out of it.
    virtual const recipes::Recipe& recipe() const = 0;
    // Where the run's store listens.
    virtual std::string bind() const = 0;
    // Enters the run's folder. Folder and start outlive what it returns.
    virtual std::unique_ptr<StartProcesses> enter(const RunFolder& folder) = 0;
  };

  explicit RunBackend(const RunBackendOptions& options) : options_(options) {}
  virtual ~RunBackend() = default;
  RunBackend(const RunBackend&) = delete;
  RunBackend& operator=(const RunBackend&) = delete;

  // Whether `retort launch --submit` can queue the run. By default kInvalidArgument.
  virtual void check_submit() const;
  // What `retort launch --dry-run` prints: all that a cluster is told. By default kInvalidArgument,
  // with what to do instead.
  virtual std::string dry_run(bool resume, bool overwrite) const;

  // kInvalidArgument where this process cannot be the run's launcher.
  virtual void check() {}
  // What the clients of the store prove in a start of its own.
  virtual rpc::RendezvousAccess new_access();
  // Whether another launcher may take the run over. This one then leaves what that needs.
  virtual bool can_be_attached() const { return true; }
  // By default a start begins before what an earlier run left in the folder is removed: where it
  // cannot begin, that stays.
  virtual bool begins_in_folder(RunFolderMode /*mode*/) const { return false; }
  // What of a start lies in the folder then: relative paths.
  virtual std::set<std::filesystem::path> files() const { return {}; }
  virtual std::unique_ptr<Start> begin(const Beginning& how, SignalCatcher& signals) = 0;
  // The start whose processes live, as their launcher before has written it; can_be_attached().
  virtual std::unique_ptr<Start> attach(const RunFolder& folder, const RunStatus& status,
                                        SignalCatcher& signals);
  // What its end comes to for whoever started this launcher.
  virtual StartEnd after_end(StartEnd end) const { return end; }

 protected:
  const recipes::Recipe& recipe() const { return options_.recipe; }
  const RunBackendOptions& options() const { return options_; }

 private:
  const RunBackendOptions options_;
};

}  // namespace retort::launch
