// The end of a process group with this process, however this one ends.
#pragma once

#include <sys/types.h>

#include "base/process/owned_fd.h"
#include "base/process/start.h"

namespace retort {

// A process in the group (a shell of one line) that waits for the end of a pipe, whose other end
// this process alone holds. When this process is gone, SIGKILLed too, it kills the group, itself
// among it. As it is in the group, that number means no other group as long as it lives; and what
// left the group, a daemon that called setsid, is out of its reach.
//
// Use: kill the group, and then destroy the guard.
// Threads: one.
class GroupGuard {
 public:
  GroupGuard() = default;
  GroupGuard(GroupGuard&& other) noexcept;
  GroupGuard& operator=(GroupGuard&&) = delete;
  ~GroupGuard();  // ends the guard

  // Once. 0, or the errno of a guard that cannot be started.
  int watch(pid_t group);
  pid_t pid() const { return pid_; }  // -1: there is none, or it has ended
  // Reaps one that somebody has killed; the group goes on without it.
  void look();

 private:
  OwnedFd life_;
  pid_t pid_ = -1;
};

// start_program(), as the leader of a new group, and then its guard: where this process is killed
// between the two, what the program has started by then stays. Where there can be no guard
// the program, which may have begun, is killed with its group; the error is the guard's
// (is_guards).
StartedProgram start_guarded(const ProgramStart& options, GroupGuard& guard);

}  // namespace retort
