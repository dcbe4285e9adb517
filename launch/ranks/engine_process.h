// An inference engine that a role starts: `external.command`.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/process/group_guard.h"
#include "base/units.h"

namespace retort::launch {

// The engine leads a process group of its own, with this process's environment less what is
// Retort's (RETORT_*, thread counts), and no descriptor but its output's. It and its group end with
// this process, even if this one is killed (base/process/group_guard.h).
// Threads: one, which must live as long as this process.
class EngineProcess {
 public:
  // How long its end is waited for. One that frees the memory of a device may take a while to die.
  struct Patience {
    Duration after_sigterm{10'000};
    Duration after_sigkill{30'000};
  };

  // argv[0] is searched in PATH. What it prints is appended to `log`. Errors of
  // throw_start_error() (base/process/start.h), and kUnavailable if there can be no log.
  EngineProcess(const std::vector<std::string>& argv, const std::filesystem::path& log,
                Patience patience);
  EngineProcess(const std::vector<std::string>& argv, const std::filesystem::path& log)
      : EngineProcess(argv, log, Patience{}) {}
  // SIGTERM to the group, SIGKILL to what is left of it after patience.after_sigterm. One that not
  // even SIGKILL ends (a driver or a debugger holds it) is left behind after patience.after_sigkill
  // and logged.
  ~EngineProcess();
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  // kUnavailable, with how it ended and where its log is, unless it runs.
  void check_running();

 private:
  bool reap();  // true: it has ended
  bool ends_by(Deadline deadline);

  std::filesystem::path log_;
  Patience patience_;
  GroupGuard guard_;
  pid_t pid_ = -1;
  int status_ = 0;
};

}  // namespace retort::launch
