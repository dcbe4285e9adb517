// Starts the processes of a run, watches them, and makes sure that however it ends none of them
// stays, nor anything that they started.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/process_name.h"
#include "base/units.h"
#include "launch/process/child_context.h"
#include "launch/process/signal_catcher.h"
#include "launch/supervision/process_status.h"
#include "rpc/supervision/supervision.h"

namespace retort::launch {

class Backend;

// A process that somebody else started and that waits to be told what it is.
struct JoinedSpec {
  pid_t pid = 0;
  std::function<void(const ChildContext&)> tell = {};  // null: it knows
  // A launcher before started it, as this one would: when it is lost it is started again.
  bool is_replaceable = false;
  // What whoever started it can do for this process; null and "": nothing.
  // To it, or to all that were started with it.
  std::function<void(int)> signal = {};
  // As RoleProcess::try_reap, of one that has not said itself how it ended.
  std::function<std::optional<int>()> ended = {};
  std::filesystem::path log = {};  // where its output goes
};

// One process to start. Driving processes run the recipe; the others serve them and are stopped
// when all of those are done.
struct ProcessSpec {
  ChildContext context;  // role, rank, threads and all else the process is told
  bool driving = false;
  // Of a serving process: the name of its replica, whose processes share a world, and how often
  // that is started again when one of them is lost.
  std::string replica;
  int64_t restarts = 0;
  std::optional<JoinedSpec> joined;        // it is there already
  std::vector<std::string> arguments;      // without argv[0]
  std::map<std::string, std::string> env;  // besides the launcher's own environment
  std::string host;                        // of the backend's, or where it joined; "": this one

  std::string name() const { return process_name(context.role, context.rank); }
};

struct SupervisorOptions {
  std::filesystem::path log_folder;  // <role>-<rank>.log, appended to; created
  std::vector<ProcessSpec> processes;
  // The launcher's end of the connections that the processes dial (ProcessSpec::context says
  // where). Outlives the supervisor.
  rpc::SupervisionPort* supervision = nullptr;
  // After a request to stop over its connection: for a process to say that it knows. One that does
  // not, or has no connection, gets SIGTERM.
  Duration answer_timeout{2'000};
  // after a signal, and after the first driving process is done: for the driving ones to end; all
  // are told it, and keep to it when the launcher is lost
  Duration stop_timeout{120'000};
  // after the driving processes are done: for the serving ones to end
  Duration serving_timeout{30'000};
  // after a failure: for all others to end before they are killed
  Duration failure_grace{10'000};
  // of a process that joined: until its connection is there, once it was told what it is
  Duration connect_timeout{60'000};
  // after a stop signal (SIGSTOP) to a serving process: until it is taken for lost
  Duration held_timeout{15'000};
  // What starts the processes that have not joined. Outlives the supervisor.
  Backend* backend = nullptr;
  // Called before the processes of a replica are started again, with all of them: says where, as
  // their host may be lost. kUnavailable when there is no room. Null: where they were.
  std::function<void(const std::vector<ProcessSpec*>& replica)> place_again;
  // Whether a child of this process is no part of the run and has somebody else who reaps it. Null:
  // there are none.
  std::function<bool(pid_t)> is_helper;
};

// How one process failed.
struct ProcessFailure {
  std::string role;
  int64_t rank = 0;
  pid_t pid = 0;
  std::optional<int> exit_code;  // it ended by itself
  int signal = 0;                // or was ended by this signal
  std::string lost;              // why its end is only taken for granted; "": it was seen
  bool started = true;           // false: it could not be started again; `message` says why
  std::string error, message;    // what it reported before it ended; may be empty
  bool of_another_rank = false;  // another rank of its role met that error and reports it too
  std::filesystem::path log;
  std::vector<std::string> log_tail;  // last lines of its log

  std::string name() const { return process_name(role, rank); }
  // "exited with code 1", "was killed by signal 11 (Segmentation fault)", "could not be started
  // again", "was lost: host h2 is silent for 15s", "did not end in time and was killed".
  std::string what() const;
  // How far it is from being the cause, which is 0. A code that another process's failure brings
  // about weighs more than to be told an error by the rank that met it, because that error still
  // says what went wrong.
  int distance_from_cause() const;
};

// Exit codes of a run that did not fail, besides 0; those of errors: exit_code_for in base/error.h.
constexpr int kExitStoppedEarly = 4;   // a checkpoint was saved: run again with --resume
constexpr int kExitDiverged = 5;       // a checkpoint was saved, but going on from it is no use
constexpr int kExitInterrupted = 130;  // by a person's Ctrl-C (128 + SIGINT), as shells expect it

struct SupervisorResult {
  int exit_code = 0;  // of the launcher: see Supervisor
  int signal = 0;     // the first signal that asked to stop; 0: none
  // the driving processes ended before the last step, by a signal or by train.max_time
  bool stopped_early = false;
  bool killed = false;                       // a second signal: everything was killed at once
  std::optional<ProcessFailure> cause;       // the first failure in time
  std::vector<ProcessFailure> consequences;  // failures after it
  std::vector<std::string> remarks;          // what went wrong without failing the run
  // what the driving processes warned of with their last word; with kExitDiverged why they ended
  std::string warning;

  // One readable block for stderr; empty after a run without failure.
  std::string report() const;
};

// How a process ended.
struct ProcessEnd {
  int status = 0;         // as waitpid gives it
  bool as_asked = false;  // with code 0 at its time, or by the signal that asked it to end
};

// Hears what happens; called by run() on its thread. Default: nothing.
class SupervisorObserver {
 public:
  virtual ~SupervisorObserver() = default;
  virtual void on_start(const ProcessSpec&, pid_t) {}
  virtual void on_status(const ProcessSpec&, const ProcessStatus&) {}
  virtual void on_end(const ProcessSpec&, const ProcessEnd&) {}
  virtual void on_exit(const ProcessSpec&, const std::string& /*what*/) {
  }                                                         // after on_end, in words
  virtual void on_phase(const std::string& /*message*/) {}  // "stopping: SIGINT ...", one line
  virtual void on_stopping() {}  // again and again, before on_tick, while all are being ended
  virtual void on_tick() {}      // at least five times a second
};

// One run of a set of processes.
//
// Asked to end: over the process's connection, and by SIGTERM where that is not answered.
//
// Done: every driving process exited with 0 after the last step. The serving ones are asked to end;
// exit code 0.
//
// Stopped early: the driving processes saved a checkpoint and exited with 0 before the last step.
// The serving ones are asked to end. Exit code 4 after SIGTERM or SIGHUP, upon which the driving
// processes are asked to end, and when train.max_time is reached. A signal to one driving process,
// after which all of them save and exit with 0, counts as SIGTERM to this one.
//
// Interrupted: SIGINT stops as SIGTERM does, but the exit code is 130, also when it comes so late
// that the last step is done.
//
// Started again: a serving process that ends after it has served, or by a signal, or is held by a
// stop signal. All of its replica are killed and started, at most ProcessSpec::restarts times; the
// run goes on. Not after exit code 2, which says that the recipe is wrong. A replica of which a
// process cannot be started (no room for one, say) is lost once more, and tried again as often.
//
// Given up: a replica for which there is no room on any host (place_again), while another of its
// role lives. The run goes on with the others.
//
// Failed: another process fails, or a serving one ends before the driving ones. All are asked to
// end, and their process groups get SIGKILL after failure_grace. The exit code is the cause's 2 or
// 3, else 1. A signal ends with 1 as well if a driving process does not exit with 0 after it, such
// as one that is still loading its model, and if a second signal comes, which kills everything.
//
// Left behind: what the processes started and did not end, in whatever process group, is killed
// once they have all ended (orphans.h, which also says what is spared).
//
// Joined: a process that somebody else started is watched by its connection alone. It says how it
// ends; one that goes silent without that has failed. A signal that it reports is one to the run.
// Nobody can kill it: what does not end as asked ends by itself (launcher_link.h).
//
// Silent: a process from which nothing comes over its connection (it is frozen, or cut off) is
// named, at once and beside a failure; nobody ends it for that alone.
//
// When this process itself disappears or stands still the children notice (launcher_link.h).
//
// Threads: the one that made it. Nothing else in the process may wait for children of its own
// meanwhile.
class Supervisor {
 public:
  explicit Supervisor(SupervisorOptions options, SupervisorObserver* observer = nullptr);
  ~Supervisor();  // kills what still runs
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts all and returns when none is left. Errors of the first start: kInvalidArgument,
  // kResourceExhausted, kUnavailable.
  SupervisorResult run(SignalCatcher& signals);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The last `lines` lines of a file from byte `offset` on; reads at most 64 KiB.
std::vector<std::string> log_tail(const std::filesystem::path& path, int64_t offset, size_t lines);

}  // namespace retort::launch
