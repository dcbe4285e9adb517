// The processes that those of a run started and left behind.
#pragma once

#include <sys/types.h>

#include <functional>
#include <set>
#include <vector>

#include "base/deadline.h"

namespace retort::launch {

// While it lives, this process is the parent of every descendant whose own parent has ended
// (PR_SET_CHILD_SUBREAPER), whatever process group that descendant is in.
//
// Use: make it before the first process of the run; reap() now and then; end_all() once the run's
// own processes have ended.
//
// Processes that are spared: children that this process has when the object is made, such as jobs
// of a shell that became this program by exec, and all in a process group of theirs or of ours.
//
// Threads: one, and nobody else in this process may wait for children of its own.
class Orphans {
 public:
  // Whether somebody else reaps this child.
  using IsKnown = std::function<bool(pid_t)>;

  explicit Orphans(IsKnown is_known);
  ~Orphans();  // end_all() if nobody called it
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // Reaps children that have ended. Never waits.
  void reap();
  // Kills and reaps all that are left, theirs included. Those that the system still holds at the
  // deadline.
  std::vector<pid_t> end_all(Deadline deadline);

 private:
  std::vector<pid_t> living() const;

  IsKnown is_known_;
  int before_ = 0;          // whether this process took orphans already
  std::set<pid_t> spared_;  // children
  std::set<pid_t> spared_groups_;
  bool ended_ = false;
};

}  // namespace retort::launch
