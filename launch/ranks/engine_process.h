// An inference engine that a role starts: `external.command`.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/process/group_guard.h"
#include "base/units.h"

namespace retort::launch {

// The engine leads a process group of its own, with this process's environment less what is
// Retort's (RETORT_*, thread counts), and no descriptor but its output's. It and its group end with
// this process, even if this one is killed (base/process/group_guard.h).
// Threads: one, which must live as long as this process.
class EngineProcess {
 public:
  // argv[0] is searched in PATH. What it prints is appended to `log`. Errors of
  // throw_start_error() (base/process/start.h), and kUnavailable if there can be no log.
  EngineProcess(const std::vector<std::string>& argv, const std::filesystem::path& log);
  // SIGTERM to the group, SIGKILL to what is left of it after ten seconds.
  ~EngineProcess();
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  // kUnavailable, with how it ended and where its log is, unless it runs.
  void check_running();

 private:
  bool reap();  // true: it has ended

  std::filesystem::path log_;
  GroupGuard guard_;
  pid_t pid_ = -1;
  int status_ = 0;
};

}  // namespace retort::launch
