// What status.json in a run's folder says: the state of a run and of each of its processes.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"

namespace retort::launch {

enum class RunState {
  kStarting,  // until the first step
  kRunning,
  kStopping,  // its processes are being ended, for whatever reason
  kDone,
  kStopped,  // early, with or without a checkpoint; --resume goes on
  kFailed
};

enum class ProcessState {
  kStarting,  // has not said anything yet
  kLoading,   // a model, or waits for another role
  kReady,     // serves, and was not asked for anything yet
  kTraining,
  kServing,  // and was asked
  kSaving,   // writes a checkpoint
  kStopped,  // has ended as it should, or is about to
  kFailed
};

// Times are on the wall clock of the launcher's host; in the file, seconds since the epoch.
struct RunStatus {
  using Time = std::chrono::system_clock::time_point;

  struct Process {
    std::string role;
    int64_t rank = 0;
    pid_t pid = 0;
    std::string host;
    ProcessState state = ProcessState::kStarting;
    Time since;           // of the state
    int64_t step = 0;     // of a driving process; of others, what they count
    std::string message;  // its last words
    Time last_report;     // it began, or said where it is; no heartbeat
    int64_t restarts = 0;
    std::optional<int> exit_code;  // of the last that ended by itself
    std::optional<int> signal;     // that ended the last one
    std::string error;             // state failed: the name of the ErrorCode; may be empty
    std::string cause;             // state failed: the process whose failure brought it about
  };

  // The failure that all others followed.
  struct Cause {
    std::string process;  // "teacher/1"
    std::string what;     // "exited with code 1"
    std::string message;
    std::string error;  // the name of the ErrorCode; may be empty
    std::string log;
  };

  std::string run, recipe;
  bool reproducible = true;  // the same recipe gives the same numbers again
  RunState state = RunState::kStarting;
  pid_t launcher_pid = 0;
  std::string launcher_host;
  Time started, updated;
  int64_t step = 0;
  std::optional<int64_t> max_steps;  // none: the run is measured in epochs
  double fraction = 0;               // of the run, 0 to 1
  std::optional<std::chrono::seconds> eta;
  std::optional<double> loss;      // of the last logged step
  std::string warning;             // the last one of a process, with its name
  std::string notice;              // what the launcher said last, like "stopping ..."
  std::optional<int> exit_code;    // of the launcher, once the run has ended
  std::optional<Cause> cause;      // of a run that failed
  std::vector<Process> processes;  // in the order of their first start

  bool ended() const { return exit_code.has_value(); }
};

// JSON of several lines; a text that is no UTF-8 loses the bytes that are none.
std::string encode_run_status(const RunStatus& status);
// kCorrupt, saying what is missing, if the text is not what encode_run_status makes.
RunStatus decode_run_status(std::string_view text);

// Whether nobody keeps a status up to date that should be: its run has not ended, and it has not
// been written for 15 s, or for 3 s with its launcher's process gone. `launcher_runs`: false only
// if it is known to be gone.
bool launcher_is_lost(const RunStatus& status, RunStatus::Time now, bool launcher_runs);

}  // namespace retort::launch

template <>
struct retort::EnumNames<retort::launch::RunState> {
  using E = retort::launch::RunState;
  static constexpr std::array<std::pair<std::string_view, E>, 6> values{{{"starting", E::kStarting},
                                                                         {"running", E::kRunning},
                                                                         {"stopping", E::kStopping},
                                                                         {"done", E::kDone},
                                                                         {"stopped", E::kStopped},
                                                                         {"failed", E::kFailed}}};
};

template <>
struct retort::EnumNames<retort::launch::ProcessState> {
  using E = retort::launch::ProcessState;
  static constexpr std::array<std::pair<std::string_view, E>, 8> values{{{"starting", E::kStarting},
                                                                         {"loading", E::kLoading},
                                                                         {"ready", E::kReady},
                                                                         {"training", E::kTraining},
                                                                         {"serving", E::kServing},
                                                                         {"saving", E::kSaving},
                                                                         {"stopped", E::kStopped},
                                                                         {"failed", E::kFailed}}};
};
