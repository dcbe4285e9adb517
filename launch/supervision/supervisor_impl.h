// What is behind Supervisor: the processes, the phase that the run is in, and what moves it on.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "launch/backends/backend.h"
#include "launch/backends/joined_process.h"
#include "launch/supervision/orphans.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {

enum class Phase {
  kRunning,    // until something happens
  kStopping,   // a signal: the driving processes were asked to save and end
  kFinishing,  // the driving processes are done: the serving ones were asked to end
  kFailing,    // something failed: all were asked to end
  kKilled,     // everything was killed
};

struct Watched {
  ProcessSpec* spec = nullptr;
  std::unique_ptr<RoleProcess> process;
  JoinedProcess* joined = nullptr;     // `process`, if it joined by itself
  std::optional<Deadline> connect_by;  // of one that joined
  std::optional<Deadline> back_by;     // its connection broke; in a run that fails it is back then
  std::filesystem::path log;
  int64_t log_offset = 0;
  ProcessStatus last;
  bool asked_to_stop = false;
  std::optional<Deadline> answer_by;  // it was asked over its connection, and gets SIGTERM then
  bool served = false;                // it came to serve, in its life of now
  int64_t restarts = 0;
  int64_t life = 0;        // `restarts` when it was started
  bool connected = false;  // there is a supervision connection
  bool silent = false;
  std::optional<Deadline> held_until;    // it is held by a stop signal, and killed then
  std::optional<int> reaped;             // it has ended; what it said last may be on its way
  std::optional<Deadline> heard_out_by;  // until then that is waited for
  std::optional<int> exit_status;

  // There is nothing left to ask or to signal.
  bool gone() const { return exit_status || reaped; }
};

struct Supervisor::Impl {
  SupervisorOptions options;
  SupervisorObserver quiet;
  SupervisorObserver* observer;
  Backend& backend;
  std::vector<Watched> children;
  Orphans orphans{[this](pid_t pid) {
    return backend.is_child(pid) || (options.is_helper && options.is_helper(pid));
  }};
  SupervisorResult result;
  std::vector<ProcessFailure> failures;  // in time
  Phase phase = Phase::kRunning;
  bool was_asked = false;            // to stop, by a signal to this process
  std::optional<Deadline> deadline;  // of the phase
  std::optional<Deadline> settle;    // after the first failure: until then a better cause may show
  // Replicas that were lost: when they are started again.
  std::map<std::string, Deadline> to_restart;
  Deadline next_look{Deadline::Clock::now()};  // for processes that are held

  Impl(SupervisorOptions o, SupervisorObserver* o2)
      : options(std::move(o)),
        observer(o2 ? o2 : &quiet),
        backend(*options.backend) {}
  ~Impl() { children.clear(); }  // before `orphans` ends what they leave behind

  void start_all();
  // An error leaves the child as one that has ended.
  void start(Watched& child);
  // Tells a process that waits for it what it is.
  void start_joined(Watched& child, const ChildContext& context);
  void poll_once(SignalCatcher& signals);
  void take_events();
  void on_report(Watched& child, const std::string& report);
  void look_for_joined();
  std::vector<std::pair<Watched*, int>> take_ends();
  void ended(Watched& child, int status);
  void signalled(int number, bool is_own);
  void advance();
  void on_deadline();
  void terminate(bool driving, bool serving);
  void signal_unanswered();
  void kill_all();
  void fail(Watched& child, std::optional<int> status);
  void fail(ProcessFailure failure);
  void note_stopped();
  bool restart_replica(Watched& child, const ProcessFailure& how);
  void start_replicas();
  void start_replica(const std::string& replica);
  // False when there is no place for it: it was given up, lost once more, or has failed.
  bool place_replica(const std::vector<Watched*>& replica);
  bool others_live(const ProcessSpec& spec) const;
  void not_started(Watched& child, const Error& error);
  ProcessFailure failure_of(const Watched& child) const;
  void end_held();
  void end_orphans();
  bool cut_off();
  void forgive_late_failures();
  void finish();
  bool driver_said(const char* state) const {
    return std::any_of(children.begin(), children.end(),
                       [&](const Watched& c) { return c.spec->driving && c.last.state == state; });
  }
  // Whether each driving process has said one of `words` last. One that says how its part of the
  // run ended has saved all that it will, and needs nobody who serves it.
  bool drivers_said_last(std::initializer_list<std::string_view> words) const {
    return std::all_of(children.begin(), children.end(), [&](const Watched& c) {
      return !c.spec->driving || std::find(words.begin(), words.end(), c.last.state) != words.end();
    });
  }
  bool drivers_are_over() const {
    return drivers_said_last({"done", "stopped", "interrupted", "diverged"});
  }

  bool any_running(bool driving) const {
    return std::any_of(children.begin(), children.end(), [&](const Watched& c) {
      return !c.exit_status && c.spec->driving == driving;
    });
  }
  bool driver_succeeded() const {
    return std::all_of(children.begin(), children.end(), [](const Watched& c) {
      return !c.spec->driving ||
             (c.exit_status && WIFEXITED(*c.exit_status) && WEXITSTATUS(*c.exit_status) == 0);
    });
  }
};

}  // namespace retort::launch
