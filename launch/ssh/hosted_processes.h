// The processes that `retort host` has started for a launcher elsewhere.
#pragma once

#include <poll.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/process/owned_fd.h"
#include "base/units.h"
#include "launch/process/child_process.h"
#include "launch/ssh/host_frames.h"
#include "launch/writers/log_writer.h"

namespace retort::launch {

// Threads: one, and nobody else in this process may wait for children of its own.
class HostedProcesses {
 public:
  using Tell = std::function<void(const FromHost&)>;
  // `tell` sends a frame to the launcher. `hold_fd` stays open in every process until it ends.
  HostedProcesses(Tell tell, int hold_fd);
  ~HostedProcesses();  // kills what still runs

  // Tells that it started, or why not.
  void start(const ToHost& frame);
  void signal(const ToHost& frame);
  // Takes what they wrote, unless `full`, and tells who has ended. Never waits.
  void work(bool full);
  void poll_for(std::vector<pollfd>& entries, bool full) const;

  // From now on nobody listens: output goes to the end of each process's log, in this host's view
  // of it.
  void keep_output();
  // SIGTERM, once to each: to those that drive the run, or to the others.
  void terminate(bool driving);
  void kill();

  bool empty() const { return processes_.empty(); }
  bool any_driving() const;
  // Whether they go on when the launcher is lost.
  bool outlive_launcher() const { return outlive_launcher_; }
  // The longest that one of them may take to save and end.
  Duration stop_timeout() const { return stop_timeout_; }
  bool is_child(pid_t pid) const;

 private:
  struct Process {
    uint64_t id = 0;
    std::filesystem::path log;
    bool driving = false, held = false, terminated = false;
    OwnedFd output;
    ChildProcess child;
  };
  void take_output(Process& process, bool all);
  void put(const Process& process, std::string_view text);

  Tell tell_;
  int hold_fd_;
  bool told_ = true;  // output goes to the launcher
  Duration stop_timeout_{0};
  bool outlive_launcher_ = false;
  LogWriter logs_;
  std::list<Process> processes_;
};

}  // namespace retort::launch
