// A program of the user's with pipes to its stdin, stdout and stderr.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/units.h"

namespace retort {

// The child is the leader of a process group of its own, with default signals, and has the three
// pipes and no other descriptor. It ends with this process, even if that is killed and runs no
// destructor. (What it has started itself ends with it at kill() and in the destructor alone.)
//
// Threads: used by one, which may be another than the one that made it.
class Child {
 public:
  // argv[0] is searched in PATH. kInvalidArgument if it cannot be started.
  explicit Child(const std::vector<std::string>& argv);
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // Closes the pipes, kills a child that has not ended two seconds later with its group, and reaps
  // it.
  ~Child();

  pid_t pid() const { return pid_; }  // -1 once it is reaped
  // Our ends of the pipes, non-blocking; -1 once closed.
  int in() const { return in_; }
  int out() const { return out_; }
  int err() const { return err_; }
  void close_in();
  void close_err();
  // "exited with code 3" or "was killed by signal 9"; "" if it has not ended after `grace`.
  std::string ending(Duration grace);
  // SIGKILL to the group, then reaps the child. ending() has to be asked before.
  void kill();

 private:
  class Keeper;
  void close_all();

  std::unique_ptr<Keeper> keeper_;  // lives as long as the child
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int err_ = -1;
};

// Where PATH has a program; a name with a slash is a path already. "" if it is nowhere.
std::string path_in_environment(const std::string& name);

// write(2) without SIGPIPE, whatever the process does with that signal. Bytes written, or -1 with
// errno.
ssize_t write_quietly(int fd, const char* data, size_t size);

}  // namespace retort
