// One started process, in a process group of its own, watched through a pidfd.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/process/owned_fd.h"

namespace retort::launch {

struct SpawnOptions {
  std::filesystem::path program;
  std::vector<std::string> arguments;    // without argv[0]
  std::vector<std::string> environment;  // the whole environment, "NAME=value"
  std::filesystem::path log;             // stdout and stderr are appended to it
  // Takes stdout, and stderr too unless those have another place: -1: `log` does.
  int output_fd = -1;
  bool errors_to_log = false;  // stderr is appended to `log` although there is an output_fd
  // Inherited as stdin (-1: /dev/null) and as kHoldFd (-1: none); every other descriptor is closed.
  int input_fd = -1, hold_fd = -1;
};

class ChildProcess {
 public:
  // Started by base/process/start.h, as the leader of a new process group.
  // kInvalidArgument when the program or the log cannot be opened, kResourceExhausted when the
  // system has no room for another process.
  explicit ChildProcess(const SpawnOptions& options);
  // Kills the group and waits for the process if it still runs.
  ~ChildProcess();
  ChildProcess(ChildProcess&&) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable once the process has ended
  bool running() const { return pid_ > 0 && !status_; }
  // Whether a stop signal (SIGSTOP, a debugger) holds it now.
  bool stopped() const;
  // Signals the process alone, or all that it started too. Does nothing once it has ended.
  void signal(int number) const;
  void signal_group(int number) const;
  // If the process has ended: kills what is left of its group and returns the status for WIFEXITED
  // and so on. Never waits.
  std::optional<int> try_reap();

 private:
  pid_t pid_ = -1;
  OwnedFd pidfd_;
  std::optional<int> status_;
};

// Whether a role's process gets this variable from the launcher or not at all: RETORT_*, thread
// counts.
bool is_launchers_variable(std::string_view name);
// The environment of a role process: ours without RETORT_* (RETORT_LOG, RETORT_CUDA_MODULE and
// RETORT_OUTER_LIBRARY_PATH stay), with the thread counts of OpenMP and MKL, and with `role_env`
// (NAME: value) in place of what has those names.
std::vector<std::string> child_environment(int64_t threads,
                                           const std::map<std::string, std::string>& role_env = {});

// Call it in a role process, before there is a second thread. A package's bin/retort puts the
// folders of LibTorch before the caller's LD_LIBRARY_PATH and keeps that in
// RETORT_OUTER_LIBRARY_PATH. The loader has read ours when main() begins; the commands that a role
// starts get the caller's.
void restore_library_path();

// `wanted` OpenMP threads, or for 0 an equal share of the cores that this process may use; at least
// 1.
int64_t threads_per_process(int64_t wanted, int64_t num_processes);
// The same of a host with that many cores.
int64_t threads_per_process(int64_t wanted, int64_t cores, int64_t num_processes);

}  // namespace retort::launch
