// What a supervisor needs of the processes of a run: an interface to each that it watches, and one
// to where they are started. Who has started a process makes no other difference:
//
//   a process of            is started by                  its end, and signals
//   this host               LocalBackend (local_backend.h) as its parent
//   a host of launch.hosts  SshBackend (ssh_backend.h)     `retort host` there
//   nobody here             somebody else; it joined       it says itself (joined_process.h)
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/process/child_context.h"

namespace retort::launch {

struct ProcessStart {
  ChildContext context;
  std::string host;  // one of the backend's; "": where the launcher runs
  bool driving = false;
  std::vector<std::string> arguments;      // without argv[0]
  std::map<std::string, std::string> env;  // besides the environment of whoever starts it
  std::filesystem::path log;               // here; stdout and stderr are appended to it
};

// A process that was started. Its destructor kills it and its group if it still runs and can be
// signalled, which one that joined cannot: to it signals are nothing.
class RoleProcess {
 public:
  virtual ~RoleProcess() = default;
  virtual pid_t pid() const = 0;  // on its host
  virtual bool running() const = 0;
  // Whether a stop signal (SIGSTOP, a debugger) holds it now.
  virtual bool stopped() const = 0;
  // Signals the process alone, or all that it started too. Does nothing once it has ended.
  virtual void signal(int number) = 0;
  virtual void signal_group(int number) = 0;
  // The status, for WIFEXITED and so on, once the process has ended and what was left of its group
  // is killed; SIGKILL for one that is lost. Never waits.
  virtual std::optional<int> try_reap() = 0;
  // Why its end is only taken for granted; "" if it was seen.
  virtual std::string lost() const { return ""; }
};

// Threads: one, the supervisor's, and work() at least five times a second.
class Backend {
 public:
  virtual ~Backend() = default;
  // kInvalidArgument when program or log cannot be opened, kResourceExhausted when the system has
  // no room for another process, kUnavailable when its host is lost.
  virtual std::unique_ptr<RoleProcess> start(const ProcessStart& start) = 0;
  // What is readable, or writable, when there is something for work() or try_reap() to do.
  virtual void poll_for(std::vector<pollfd>& entries) const = 0;
  // Takes what has come, and sends what waits. Never waits.
  virtual void work() = 0;
  // Whether this backend reaps that child of the launcher's.
  virtual bool is_child(pid_t pid) const = 0;
};

}  // namespace retort::launch
