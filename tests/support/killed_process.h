// A process that is killed, so that no destructor of it runs.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/process/pipe.h"
#include "base/process/start.h"

namespace retort::test {

// A copy of this process (fork) that does `work`, holds what that returns, and waits to be killed:
// at the end of the scope at the latest, and where this process ends. It exits with 1 if `work`
// throws.
class KilledProcess {
 public:
  template <class Work>
  explicit KilledProcess(Work&& work) : pid_(::fork()) {
    if (pid_ != 0) {
      done_.in.reset();
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      [[maybe_unused]] const auto held = work();
      if (::write(done_.in.get(), "", 1) != 1) ::_exit(1);
      for (;;)
        ::pause();
    } catch (...) {
      ::_exit(1);
    }
  }
  KilledProcess(const KilledProcess&) = delete;
  KilledProcess& operator=(const KilledProcess&) = delete;
  ~KilledProcess() { kill(); }

  // Waits until `work` has returned; false if the process ended instead. What `work` starts may be
  // seen before: a test that kills this process in between sees less of it than it means to.
  bool has_worked() const {
    char byte = 0;
    return ::read(done_.out.get(), &byte, 1) == 1;
  }
  pid_t pid() const { return pid_; }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    reap(pid_);
    pid_ = -1;
  }

 private:
  Pipe done_ = make_pipe();  // made before the fork, so that both have it
  pid_t pid_ = -1;
};

}  // namespace retort::test
