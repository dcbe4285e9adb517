// A program of the user's with pipes to its stdin, stdout and stderr.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/process/owned_fd.h"
#include "base/units.h"

namespace retort {

// The child is the leader of a process group of its own, with default signals, and has the three
// pipes and no other descriptor. It and its group end with this process, even if that is killed and
// runs no destructor (group_guard.h). A program that it started and that left the group does not.
//
// Threads: used by one, which may be another than the one that made it.
class Child {
 public:
  // Where its stderr goes: into a pipe of its own, or between the words of its stdout.
  enum class Errors { kApart, kWithOutput };

  // argv[0] is searched in PATH. Errors of throw_start_error() (start.h): kInvalidArgument if it
  // cannot be started, kResourceExhausted if there is no room for it.
  explicit Child(const std::vector<std::string>& argv, Errors errors = Errors::kApart);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // Closes the pipes, kills a child that has not ended two seconds later with its group, and reaps
  // it.
  ~Child();

  pid_t pid() const { return pid_; }  // -1 once it is reaped
  // The process that ends the group with this process; -1 once there is none.
  pid_t guard_pid() const;
  // Our ends of the pipes, non-blocking; -1 once closed, and err() with Errors::kWithOutput.
  int in() const { return in_.get(); }
  int out() const { return out_.get(); }
  int err() const { return err_.get(); }
  void close_in() { in_.reset(); }
  void close_err() { err_.reset(); }
  // "exited with code 3" or "was killed by signal 9"; "" if it has not ended after `grace`.
  std::string ending(Duration grace);
  // SIGKILL to the group, then reaps the child. ending() has to be asked before. One that has not
  // ended five seconds later (in a call that no signal interrupts) is left, and the log says so.
  void kill();

 private:
  class Keeper;
  void close_all();

  std::unique_ptr<Keeper> keeper_;  // lives as long as the child
  pid_t pid_ = -1;
  OwnedFd in_, out_, err_;
};

// write(2) without SIGPIPE, whatever the process does with that signal. Bytes written, or -1 with
// errno.
ssize_t write_quietly(int fd, const char* data, size_t size);

}  // namespace retort
