// The processes of a run as its supervisor knows them: each one's life, its connection, and its
// last words.
#pragma once

#include <csignal>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "launch/supervision/backend.h"
#include "launch/supervision/joined_process.h"
#include "launch/supervision/process_status.h"
#include "launch/supervision/supervisor.h"

namespace retort::launch {

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
  // What is known of it, but for how it ended.
  ProcessFailure failure() const;
};

// Starts, asks and signals them; what that means for the run is the supervisor's to say.
// Options and observer outlive it.
class WatchedProcesses {
 public:
  WatchedProcesses(SupervisorOptions& options, SupervisorObserver& observer)
      : options_(options), observer_(observer) {}

  void start_all();
  // An error leaves the child as one that has ended.
  void start(Watched& child);
  std::vector<Watched>& all() { return all_; }
  const std::vector<Watched>& all() const { return all_; }

  // Takes those that have ended: status before ends, since what a process said last belongs to how
  // it ended. Call reap(), take what the connections say, then ends(): what a process knew to have
  // arrived is there when it has ended; what else it sent is there when its connection has.
  void reap();
  std::vector<std::pair<Watched*, int>> ends();

  // Asks each over its connection, and by SIGTERM where there is none.
  void ask_to_stop(bool driving, bool serving, Duration within);
  // A process whose connection does not answer gets signals all the same, unless it joined.
  void signal_unanswered();
  void kill();

  bool any_running(bool driving) const;
  bool driver_said(std::string_view state) const;
  // Whether each driving process has said one of `words` last.
  bool drivers_said_last(std::initializer_list<std::string_view> words) const;
  // One that says how its part of the run ended has saved all that it will, and needs nobody who
  // serves it.
  bool drivers_are_over() const;
  bool driver_succeeded() const;

 private:
  // Tells a process that waits for it what it is.
  void start_joined(Watched& child, const ChildContext& context);

  SupervisorOptions& options_;
  SupervisorObserver& observer_;
  std::vector<Watched> all_;
};

}  // namespace retort::launch
